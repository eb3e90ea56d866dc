"""Hundreds of clients and nodes that lose the broker at once come back without a storm."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.bus.home import Home
from dsec.bus.host import Context
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Received
from dsec.plugins.iam import Iam

pytestmark = [pytest.mark.kill, pytest.mark.slow]

CLIENTS, NODES = 500, 160
CAPACITY = 800
"""Connections that one iam admits each second (measured, docs/adr/0007-fencing.md)."""


class Counting(Iam):
    """The real one, which counts what it is asked."""

    asked_in: Counter[int]

    async def asked(self, message: Received) -> None:
        self.asked_in[int(time.monotonic())] += 1
        await super().asked(message)


@contextlib.asynccontextmanager
async def connected(broker: Broker, home: Home, owners: list[str]) -> AsyncIterator[list[Wire]]:
    credentials = [Iam.create_node(home, owner) for owner in owners if owner.startswith("n-")]
    tenant = Iam.create_principal(home, "p-many", "u-many")
    credentials += [tenant] * (len(owners) - len(credentials))
    gate = asyncio.Semaphore(50)
    async with contextlib.AsyncExitStack() as stack:

        async def one(number: int) -> Wire:
            async with gate:
                return await stack.enter_async_context(
                    Wire.connect(broker.url, credentials[number], owners[number], timeout=30)
                )

        yield await asyncio.gather(*(one(number) for number in range(len(owners))))


async def test_everybody_is_back_within_seconds_and_asks_iam_about_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    prepared = Iam.prepare(home)
    Counting.asked_in = Counter()
    owners = [f"n-many{number}" for number in range(NODES)] + ["client"] * CLIENTS
    async with (
        Broker.running(home.broker, auth=prepared.auth) as broker,
        Wire.connect(broker.url, prepared.credentials("iam"), "iam") as iam,
        Counting.running(iam, Context(home.part("iam"))),
        connected(broker, home, owners) as wires,
    ):
        Counting.asked_in.clear()
        began = time.monotonic()
        os.kill(broker.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while any(wire.connected for wire in wires) and time.monotonic() - began < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while not all(wire.connected for wire in wires):  # noqa: ASYNC110 - a wire tells its state only
                await asyncio.sleep(0.02)
        took = time.monotonic() - began
        asked = Counting.asked_in
    print(f"{len(owners)} back after {took:.1f} s, iam asked {asked.total()} times: {dict(asked)}")
    assert took < 20
    assert asked.total() < 2 * len(owners)
    assert max(asked.values()) <= CAPACITY
