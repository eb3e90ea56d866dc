"""Several cores, schedulers and iam, one of each killed under load: the quota holds and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.bus.errors import DsecError, QuotaExceeded
from dsec.bus.home import Home
from dsec.bus.nats.broker import Broker
from dsec.bus.registry import ensure
from dsec.plugins.iam import Iam
from dsec.sdk import Client
from tests.control.cluster import Cluster
from tests.quotas.test_leases import RegisteringNode

PROCESS = Path(__file__).parent / "process.py"
LIMIT = 40
MIB = 1 << 20


@contextlib.asynccontextmanager
async def part(name: str, url: str, home: Home) -> AsyncIterator[int]:
    """One part of the control plane in a process of its own; its id."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROCESS), name, url, str(home.path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await process.communicate()


@contextlib.asynccontextmanager
async def platform(path: Path) -> AsyncIterator[tuple[Cluster, dict[str, list[int]]]]:
    """A broker here; everything else in processes of its own, with the ids of those."""
    home = Home(path)
    prepared = Iam.prepare(home)
    running: dict[str, list[int]] = {}
    async with contextlib.AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker.running(home.broker, auth=prepared.auth))
        cluster = Cluster(home, broker.url)
        for name, count in (("iam", 2), ("core", 3), ("scheduler", 2), ("journal", 2)):
            if name == "core":
                cluster.core = await stack.enter_async_context(cluster.connected("core"))
                await ensure(cluster.core.jetstream, exec_bytes=64 << 20)
            blocks = [part(name, broker.url, home) for _ in range(count)]
            running[name] = list(await asyncio.gather(*map(stack.enter_async_context, blocks)))
        yield cluster, running


@pytest.mark.kill
@pytest.mark.slow
async def test_one_of_each_is_killed_under_load_and_the_quota_holds(tmp_path: Path) -> None:
    async with (
        platform(tmp_path) as (cluster, running),
        RegisteringNode.running(cluster, "n-one") as node,
        Client(cluster.url, cluster.home.credentials / "u-admin.json") as admin,
    ):
        assert isinstance(node, RegisteringNode)
        await admin.projects.create("p-lab", quota={"sandboxes": LIMIT})
        who = await admin.principals.create("u-lab", project="p-lab")
        most = 0

        async def watched() -> None:
            nonlocal most
            while True:
                most = max(most, len(node.sandboxes))
                await asyncio.sleep(0.002)

        watching = asyncio.create_task(watched())
        async with Client(cluster.url, who) as lab:
            made: list[str] = []
            refused: list[DsecError] = []

            async def one(number: int) -> None:
                if number == 60:
                    for name in ("core", "scheduler", "iam", "journal"):
                        os.kill(running[name][0], signal.SIGKILL)
                try:
                    sandbox = await lab.create(image="base", timeout=60, key=f"key-{number}")
                except DsecError as error:
                    refused.append(error)
                    return
                made.append(sandbox.id)
                if number % 2:
                    made.remove(sandbox.id)
                    await node.destroy(sandbox.id)

            gate = asyncio.Semaphore(24)

            async def gated(number: int) -> None:
                async with gate:
                    await one(number)

            await asyncio.gather(*(gated(number) for number in range(200)))
            again = await lab.create(image="base", timeout=30, key="key-0")
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert most <= LIMIT
    assert again.id in made
    assert len(made) == len(set(made))
    assert set(made) <= set(node.sandboxes)
    assert {type(error) for error in refused} <= {QuotaExceeded}
    assert len(made) >= LIMIT // 2
