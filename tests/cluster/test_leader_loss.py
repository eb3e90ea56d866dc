"""Servers of a cluster killed under load: what was acknowledged is there, once, and work goes on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from dsec.benchmarks.counting import counted
from dsec.bus.errors import Failure
from dsec.bus.home import Home
from dsec.bus.nats.directget import DirectGet, answer_of, patiently
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam import Iam, Prepared
from dsec.plugins.iam.rights import STREAMS
from dsec.plugins.sim import fleet
from dsec.plugins.sim.fleet import names
from dsec.sdk import Client
from dsec.sdk.testing import platform
from tests.cluster import trio as trios
from tests.cluster.load import Load
from tests.cluster.trio import Trio

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.alone]

NODES = 4
BATCH = 300
RIDDEN_OUT = 20.0
"""Seconds without any answer that a lost leader may cost on a machine that is busy with other tests."""


_loads = itertools.count()


@dataclass(slots=True)
class Plane:
    """A control plane on a cluster, with simulated nodes in this process. `batched`: sandboxes that are in no
    claim of their own.
    """

    trio: Trio
    part: platform.Part
    prepared: Prepared
    operator: Wire
    batched: int = 0

    async def leader(self, stream: str) -> str:
        """The server that leads a stream."""

        async def asked() -> str:
            body = answer_of(await self.operator.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=2))
            return str(body["cluster"]["leader"])

        return await patiently(asked)

    async def caught_up(self) -> None:
        """Every replica of every stream has what its leader has; Raises TimeoutError."""
        async with asyncio.timeout(40):
            for stream in STREAMS:
                while not await self._current(stream):  # noqa: ASYNC110 - it is asked as an operator does
                    await asyncio.sleep(0.2)

    async def _current(self, stream: str) -> bool:
        with contextlib.suppress(Exception):
            told = answer_of(await self.operator.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=2))
            replicas = told["cluster"].get("replicas", ())
            return len(replicas) == 2 and all(one["current"] for one in replicas)
        return False


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Plane]:
    path: Path = tmp_path_factory.mktemp("leader")
    home = Home(path / "home")
    prepared = Iam.prepare(home, nodes=names(NODES))
    async with (
        trios.running(path / "nats", prepared.auth) as trio,
        platform.running(home.path, only="control", options=["--broker", trio.url]) as part,
        fleet(trio.url, {name: prepared.credentials(name) for name in names(NODES)}, home.part("sim")),
        Wire.connect(trio.url, prepared.credentials("operator")) as operator,
    ):
        plane = Plane(trio, part, prepared, operator)
        await plane.caught_up()
        yield plane


@pytest_asyncio.fixture(loop_scope="session")
async def load(plane: Plane) -> AsyncIterator[Load]:
    async with plane.part.client() as client:
        yield Load(client, f"load{next(_loads)}")


@contextlib.asynccontextmanager
async def loaded(load: Load) -> AsyncIterator[None]:
    """The load runs while the block does, and is finished afterwards."""
    stop = asyncio.Event()
    running = asyncio.create_task(load.run(stop))
    try:
        await asyncio.sleep(1)
        yield
        await asyncio.sleep(1)
        stop.set()
        await asyncio.wait_for(running, 90)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def told_right(plane: Plane, load: Load) -> None:
    """Nothing acknowledged is lost, nothing is there twice, and errors were of one kind."""
    await plane.caught_up()
    await load.asked_again()
    async with DirectGet.running(plane.operator) as reader:
        assert await load.lost(reader) == []
    count = await counted(plane.part, load.made)
    assert (count.lost, count.duplicated - plane.batched, load.doubled) == (0, 0, []), count
    assert {error.failure for error in load.errors} <= {Failure.INFRA}, load.errors
    gap = max(load.gaps)
    print(f"{len(load.made)} made, {len(load.ran)} ran, {len(load.errors)} refused, longest gap {gap:.1f} s")


async def test_the_loss_of_a_leader_is_ridden_out(plane: Plane, load: Load) -> None:
    async with loaded(load):
        leader = await plane.leader("KV_ops")
        await plane.trio.end(leader)
        await asyncio.sleep(4)
        await plane.trio.start(leader)
        await asyncio.sleep(2)
    await told_right(plane, load)
    assert max(load.gaps) < RIDDEN_OUT


async def test_servers_restarted_one_after_the_other_are_ridden_out(plane: Plane, load: Load) -> None:
    """Each leads some streams and has connections of clients, nodes and parts: all are lost once."""
    async with loaded(load):
        many = load.client.create_many(BATCH, backend="sim", image="any", key="in-between")
        batch = asyncio.create_task(many)
        for name in plane.trio.names:
            await plane.trio.end(name, signal.SIGTERM if name == "nats-2" else signal.SIGKILL)
            await plane.trio.start(name)
            await plane.caught_up()
        made = await asyncio.wait_for(batch, 60)
        progress = await made.wait()
        assert (progress.running, progress.failed) == (BATCH, 0), set(map(str, made.failures.values()))
        plane.batched += BATCH
        listed = [record.sandbox async for record in load.client.list(job=made.job)]
        assert len(listed) == len(set(listed)) == BATCH
    await told_right(plane, load)
    assert max(load.gaps) < RIDDEN_OUT


async def test_without_a_quorum_nothing_is_acknowledged_and_all_goes_on_when_it_is_back(
    plane: Plane, load: Load
) -> None:
    impatient = Client(plane.part.url, plane.part.credentials, patience=3.0)
    async with loaded(load), impatient as client:
        for name in ("nats-1", "nats-2"):
            await plane.trio.end(name)
        await asyncio.sleep(1)
        began = time.monotonic()
        with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is looked at
            await client.create(backend="sim", image="any", key="no-quorum", timeout=4)
        assert getattr(caught.value, "failure", None) is Failure.INFRA, caught.value
        assert time.monotonic() - began < 10
        for name in ("nats-1", "nats-2"):
            await plane.trio.start(name)
        made = await load.client.create(backend="sim", image="any", key="no-quorum")
        assert (await load.client.create(backend="sim", image="any", key="no-quorum")).id == made.id
    await told_right(plane, load)


async def test_a_server_that_stands_still_makes_no_read_wrong(plane: Plane, load: Load) -> None:
    """Its routes stay open for some seconds, and reads that go to it are asked again."""
    leader = await plane.leader("KV_ops")
    follower = next(name for name in plane.trio.names if name != leader)
    async with loaded(load):
        pid = plane.trio.processes[follower].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(6)
        finally:
            os.kill(pid, signal.SIGCONT)
    await told_right(plane, load)


async def test_control_planes_are_replaced_one_after_the_other(
    plane: Plane, load: Load, tmp_path: Path
) -> None:
    """As an upgrade does it: each ends in good order while the other serves. The module's own ends here."""
    former, second = Path(plane.part.ready["home"]), tmp_path / "second"
    for part in ("credentials", "parts/iam"):
        await asyncio.to_thread(shutil.copytree, former / part, second / part)
    options = ["--broker", plane.trio.url]
    async with platform.running(second, only="control", options=options) as other:
        async with loaded(load):
            await plane.part.stop()
            await asyncio.sleep(1)
            plane.part = other
        async with platform.running(former, only="control", options=options) as again:
            async with loaded(load):
                await other.stop()
            plane.part = again
            await told_right(plane, load)
    assert max(load.gaps) < RIDDEN_OUT
