"""Cores as processes that can be killed, simulated nodes, and what a batch came to."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from dsec.bus import subjects
from dsec.bus.core.service import Core
from dsec.bus.handlers import result
from dsec.bus.home import Home
from dsec.bus.host import Context
from dsec.bus.messages import Fleet
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam import Iam
from dsec.plugins.sim import SimConfig, SimNode, fleet
from dsec.sdk import Client, State
from dsec.sdk.spec_args import SpecArgs
from tests.control.cluster import PRINCIPAL, PROJECT, Cluster

SIM: Final[SpecArgs] = {"backend": "sim", "image": "any"}


def client_of(cluster: Cluster) -> AbstractAsyncContextManager[Client]:
    return Client.over(cluster.tenant, PROJECT, PRINCIPAL)


@contextlib.asynccontextmanager
async def nodes(
    cluster: Cluster, config: SimConfig | None = None, *, count: int = 4, prefix: str = "job"
) -> AsyncIterator[dict[str, SimNode]]:
    """Simulated nodes, known to the scheduler; `prefix` names them, since one that ended is known a while."""
    names = [f"n-{prefix}-{number}" for number in range(count)]
    prepared = Iam.prepare(cluster.home, nodes=names)
    who = {name: prepared.credentials(name) for name in names}
    async with fleet(cluster.url, who, cluster.home.part(f"sim-{prefix}"), config) as running:
        await known(cluster, set(names))
        yield running


async def known(cluster: Cluster, names: set[str]) -> None:
    """Return when the scheduler has heard of all of them."""
    async with asyncio.timeout(20):
        while True:
            answer = await cluster.operator.request(subjects.SCHED_FLEET, b"{}", timeout=5)
            if names <= {node.node for node in Fleet.model_validate(result(answer.data)).nodes}:
                return
            await asyncio.sleep(0.05)


def held(running: dict[str, SimNode]) -> list[str]:
    """Ids of everything that the nodes hold, however they came to it."""
    return [sandbox for node in running.values() for sandbox in node.books.table]


def states(running: dict[str, SimNode]) -> Counter[State]:
    return Counter(one.state for node in running.values() for one in node.books.table.values())


@contextlib.asynccontextmanager
async def core_process(cluster: Cluster) -> AsyncIterator[Process]:
    """A core in a process of its own, which serves."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.jobs.support", cluster.url, str(cluster.home.path)), stdout=PIPE
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 30)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def until(holds: Callable[[], bool], within: float = 20.0) -> None:
    """Return as soon as `holds`."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 - what is looked at tells no changes
            await asyncio.sleep(0.01)


async def serve(url: str, home: Path) -> None:
    credentials = Credentials.load(Home(home).credentials / "core.json")
    async with Wire.connect(url, credentials) as wire, Core.running(wire, Context(home)):
        print("serves", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
