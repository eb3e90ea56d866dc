"""Restarts of the edge, clean and by kill -9, and of the broker, while commands run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.bus import ids
from dsec.bus.errors import DsecError, Failure
from dsec.bus.home import Home
from dsec.bus.messages import State
from dsec.plugins.edge.trajectory import Entry, Trajectory
from dsec.plugins.images import ErofsImages
from dsec.plugins.images.base import base_image
from dsec.sdk import Client, Sandbox
from dsec.sdk.testing import platform
from dsec.sdk.testing.platform import Part
from dsec.sdk.testing.traces import cgroups
from tests.edge.support import Site, eventually, traces

pytestmark = [pytest.mark.node, pytest.mark.kill]
SLOW_COUNT = "for i in $(seq 400); do echo out$i; echo err$i >&2; sleep 0.01; done; exit 7"
OUT = b"".join(b"out%d\n" % number for number in range(1, 401))
ERR = b"".join(b"err%d\n" % number for number in range(1, 401))


async def test_a_restarted_edge_goes_on_with_sandboxes_and_commands(site: Site) -> None:
    async with site.client() as client:
        async with site.edge():
            sandbox = await client.create(backend="container", image="base")
            await sandbox.files.write("/kept", b"x")
            running = await sandbox.start(SLOW_COUNT)
            idle = await client.create(backend="container", image="base")
        async with site.edge(drain=True):
            result = await running.wait()
            assert (result.stdout_bytes, result.stderr_bytes, result.code) == (OUT, ERR, 7)
            assert await sandbox.files.read("/kept") == b"x"
            assert (await sandbox.run(["true"])).log == 2
            assert (await idle.run(["true"])).log == 1
        assert traces(site, sandbox.id) == traces(site, idle.id) == []


async def test_a_command_that_was_journalled_and_never_forked_starts_on_a_retry(site: Site) -> None:
    async with site.client() as client:
        async with site.edge():
            sandbox = await client.create(backend="container", image="base")
            assert (await sandbox.run("echo x >>/n", key="ran")).code == 0
        trajectory = Trajectory(site.home / "sandboxes" / sandbox.id / "trajectory.jsonl")
        lost = Entry(trajectory.take_number(), ids.exec_of("lost"), ["true"], 1.0, None, 1024)
        trajectory.start(lost)  # as a node that is killed before the fork leaves it
        trajectory.close()
        async with site.edge(drain=True):
            assert (await sandbox.run("echo x >>/n; cat /n", key="lost")).stdout == "x\nx\n"
            assert (await sandbox.run("echo x >>/n", key="ran")).stdout == ""
            assert (await sandbox.run(["cat", "/n"])).stdout == "x\nx\n"


async def test_a_sandbox_that_died_meanwhile_is_failed(site: Site) -> None:
    async with site.client() as client:
        async with site.edge():
            sandbox = await client.create(backend="container", image="base")
        for path in cgroups(sandbox.id):
            for pid in (Path(path) / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        async with site.edge(drain=True):
            record = await sandbox.stat()
            assert record.state is State.FAILED
            assert record.failure in {Failure.LIMIT, Failure.INFRA}  # which, is the driver's word


async def test_what_no_row_names_is_swept(site: Site) -> None:
    async with site.edge():
        pass
    orphan = "s-edge-orphan0000000000"
    for directory in (site.home / "sandboxes" / orphan, site.home.parent / "images/sandboxes" / orphan):
        directory.mkdir(parents=True)
    async with site.edge():
        assert traces(site, orphan) == []


class Halves:
    """Control plane and edge as processes of their own; the edge can be killed and started again."""

    def __init__(self, home: Path, control: Part) -> None:
        self.home, self.control = home, control
        self.edge: Part

    async def start_edge(self) -> None:
        self.edge = await platform.spawn(self.home, only="edge")

    async def restart_edge(self) -> None:
        await self.edge.kill()
        await self.start_edge()

    def client(self) -> Client:
        return self.control.client()


@pytest.fixture
async def halves(tmp_path: Path) -> AsyncIterator[Halves]:
    tmp_path.chmod(0o711)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o711)
    home = tmp_path / "home"
    async with platform.running(home, only="control") as control:
        images = ErofsImages(Home(home).images(str(control.ready["node"])))
        await images.import_file("base", await base_image(), "base")
        await images.close()
        halves = Halves(home, control)
        await halves.start_edge()
        try:
            yield halves
        finally:
            await _empty(halves)
            await halves.edge.stop()


async def _empty(halves: Halves) -> None:
    async with halves.client() as client:
        for record in [record async for record in client.list()]:
            with contextlib.suppress(DsecError):
                await (await client.attach(record.sandbox)).destroy()


async def test_output_is_complete_over_kills_of_the_edge(halves: Halves) -> None:
    async with halves.client() as client:
        sandbox = await client.create(backend="container", image="base")
        slow = await sandbox.start(SLOW_COUNT)
        detached = await sandbox.start("sleep 1; seq 200000", detach=True)
        reading = asyncio.create_task(slow.wait())
        for _ in range(2):
            await asyncio.sleep(0.7)
            await halves.restart_edge()
        result = await reading
        assert (result.stdout_bytes, result.stderr_bytes, result.code) == (OUT, ERR, 7)
        assert (await detached.wait()).stdout_bytes == b"".join(b"%d\n" % i for i in range(1, 200_001))
        await sandbox.destroy()


async def test_a_fast_stream_is_complete_over_kills_of_edge_and_broker(halves: Halves) -> None:
    async with halves.client() as client:
        sandbox = await client.create(backend="container", image="base")
        running = await sandbox.start("seq 3000000")
        reading = asyncio.create_task(running.wait())
        await asyncio.sleep(0.05)
        os.kill(int(halves.control.ready["broker_pid"]), signal.SIGKILL)
        await halves.restart_edge()
        result = await reading
        assert result.code == 0
        assert result.stdout_bytes == b"".join(b"%d\n" % i for i in range(1, 3_000_001))
        await sandbox.destroy()


@pytest.mark.slow
async def test_a_kill_amid_creates_and_execs_loses_and_doubles_nothing(halves: Halves) -> None:
    async with halves.client() as client:
        made: dict[int, Sandbox] = {}
        failures: list[BaseException] = []

        async def one(number: int) -> None:
            try:
                sandbox = await client.create(backend="container", image="base", key=f"kill-{number}")
                made[number] = sandbox
                done = await sandbox.run("echo x >>/n; cat /n", key=f"exec-{number}")
                assert done.stdout == "x\n"
            except DsecError as error:
                failures.append(error)

        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(one(number))
            await asyncio.sleep(0.3)
            await halves.restart_edge()
        for sandbox in made.values():
            assert (await sandbox.run("cat /n 2>/dev/null; true")).stdout in {"x\n", ""}
        listed = {record.sandbox async for record in client.list()}
        assert {sandbox.id for sandbox in made.values()} <= listed
        assert len(made) + len(failures) >= 40
        await _orphans_are_gone(halves, listed)


async def _orphans_are_gone(halves: Halves, live: set[str]) -> None:
    directory = Home(halves.home).images(str(halves.edge.ready["node"])) / "sandboxes"

    async def same() -> bool:
        return {entry.name for entry in directory.iterdir()} <= live

    await eventually(same)
