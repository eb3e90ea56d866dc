"""Many simulated nodes in one process, each with a connection and a credential of its own, one journal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from dsec.bus.fencing import DEFAULT, Patience
from dsec.bus.host import service_of
from dsec.bus.membership import member
from dsec.bus.metrics.parts import seen
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.plugins.sim.config import SimConfig
from dsec.plugins.sim.journal import Journal
from dsec.plugins.sim.node import SimNode

CONNECTING: Final = 16
"""Connections that are made at once: iam answers each."""
LINGER: Final = 0.008
"""Seconds between two writes of a busy node: one of many in the process."""


@contextlib.asynccontextmanager
async def fleet(
    url: str,
    credentials: Mapping[str, Credentials],
    home: Path,
    config: SimConfig | None = None,
    *,
    patience: Patience = DEFAULT,
) -> AsyncIterator[dict[str, SimNode]]:
    """The nodes that `credentials` names, serving while the block runs; `home` keeps their journal.

    Each answers discovery as every member does, and is fenced (`patience`) when it loses the broker.

    Raises BrokerDown, Unauthenticated, DiskFull, InfraError.
    """
    gate = asyncio.Semaphore(CONNECTING)
    async with contextlib.AsyncExitStack() as stack:
        journal = await stack.enter_async_context(Journal.opened(home / "journal.jsonl"))

        async def connected(node: str, who: Credentials) -> Wire:
            async with gate:
                return await stack.enter_async_context(Wire.connect(url, who, f"sim {node}", linger=LINGER))

        wires = await asyncio.gather(*(connected(node, who) for node, who in credentials.items()))
        nodes = {}
        for node, wire in zip(credentials, wires, strict=True):
            running = SimNode.running(wire, node, journal, config, patience=patience)
            nodes[node] = await stack.enter_async_context(running)
            await stack.enter_async_context(member(wire, service_of(credentials[node])))
            stack.enter_context(seen("sim", node, wire))
        yield nodes


def names(count: int) -> list[str]:
    """Names of `count` simulated nodes: `n-sim-000`…"""
    return [f"n-sim-{number:03d}" for number in range(count)]
