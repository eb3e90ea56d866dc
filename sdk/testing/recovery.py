"""Faults: the node's program, its driver's or the broker killed in the middle of work. Nothing acknowledged
is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dsec.bus.errors import DsecError, Failure, InfraError
from dsec.bus.messages import Ended
from dsec.sdk import Client, Sandbox
from dsec.sdk.spec_args import LimitArgs, SpecArgs
from dsec.sdk.testing import pace, platform, traces
from dsec.sdk.testing.plugin import add_base

ROLLOUTS = pace.fewer(100)
TALKS = max(2, pace.fewer(8))
LINES = pace.fewer(4000)
COUNT = (
    f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1));"
    f" [ $((i % {pace.fewer(500)})) = 0 ] && sleep {pace.within(0.05)}; done"
)


class Split:
    """A platform whose control plane and edge are processes of their own; `apart` names a driver that is one
    too."""

    def __init__(self, home: Path, control: platform.Part, apart: str) -> None:
        self.home, self.control, self.apart = home, control, apart
        self.edge: platform.Part
        self.driver: platform.Part | None = None

    async def start(self) -> None:
        await self._start_edge()
        if self.apart:
            self.driver = await platform.spawn_driver(self.home, self.apart)
            await platform.known(self.control, self.apart)

    async def _start_edge(self) -> None:
        options = ["--without-driver", self.apart] if self.apart else []
        self.edge = await platform.spawn(self.home, only="edge", options=options)

    async def stop(self) -> None:
        await self.edge.stop()
        if self.driver is not None:
            await self.driver.stop()

    async def strike(self, victim: str) -> None:
        """Kill it; edge and driver are started again at once, the broker by its supervisor."""
        match victim:
            case "edge":
                await self.edge.kill()
                await self._start_edge()
            case "broker":
                os.kill(self._broker_pid(), 9)
            case "driver":
                assert self.driver is not None
                await self.driver.kill()
                self.driver = await platform.spawn_driver(self.home, self.apart)

    def _broker_pid(self) -> int:
        """Of the broker that serves now: a killed one is started again by its supervisor."""
        control = self.control.process.pid
        for child in Path(f"/proc/{control}/task/{control}/children").read_text().split():
            with contextlib.suppress(OSError):
                if b"nats-server" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        raise InfraError("the broker is not running")


@pytest.fixture(params=["edge", "broker", "driver"])
def victim(request: pytest.FixtureRequest, apart: str) -> str:
    """What is killed."""
    if request.param == "driver" and not apart:
        pytest.skip("the driver runs in the edge's process")
    return str(request.param)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def split(
    tmp_path_factory: pytest.TempPathFactory, base_file: Path, apart: str
) -> AsyncIterator[Split]:
    """One platform for all kills: whatever one leaves behind, the next test finds."""
    home = tmp_path_factory.mktemp("split")
    await add_base(home, base_file)
    async with platform.running(home, only="control") as control:
        parts = Split(home, control, apart)
        await parts.start()
        try:
            yield parts
        finally:
            await parts.stop()


class RecoverySuite:
    async def test_running_commands_survive_a_kill_with_their_output_complete(
        self, victim: str, split: Split, backend: str
    ) -> None:
        async with split.control.client() as client, client.sandbox(backend=backend, image="base") as sandbox:
            running = [await sandbox.start(COUNT) for _ in range(6)]
            readers = [asyncio.create_task(one.wait()) for one in running]
            await asyncio.sleep(0.15)
            await split.strike(victim)
            async with asyncio.timeout(pace.within(60)):
                results = await asyncio.gather(*readers)
            expected = "".join(f"line {i}\n" for i in range(LINES))
            assert [result.stdout == expected for result in results] == [True] * 6
            assert {result.code for result in results} <= {0, 1}

    async def test_a_kill_among_creates_and_execs_loses_and_doubles_nothing(
        self, victim: str, split: Split, backend: str, offered: frozenset[str]
    ) -> None:
        spec: SpecArgs = {"backend": backend, "image": "base", "limits": _small(offered)}
        key = f"kill-{victim}"
        async with split.control.client() as client:
            workers = [
                asyncio.create_task(_work(client, spec, f"{key}-{number}")) for number in range(ROLLOUTS)
            ]
            await asyncio.sleep(pace.within(1.0))
            await split.strike(victim)
            async with asyncio.timeout(pace.within(110)):
                outcomes = await asyncio.gather(*workers)
            acknowledged = [outcome.id for outcome in outcomes if isinstance(outcome, Sandbox)]
            failures = [outcome for outcome in outcomes if isinstance(outcome, DsecError)]
            assert len(acknowledged) + len(failures) == ROLLOUTS
            assert all(error.failure is Failure.INFRA for error in failures)
            listed = {record.sandbox async for record in client.list() if record.state == "running"}
            assert len(set(acknowledged)) == len(acknowledged)
            assert set(acknowledged) <= listed
            await _no_duplicates(client, spec, key, acknowledged, outcomes)
            await asyncio.gather(*(_destroy(client, name) for name in listed))
        assert await asyncio.to_thread(traces.of, split.home, *acknowledged, *listed) == []
        assert not [point for point in traces.mounts_under(split.home) if "/sandboxes/" in point]

    async def test_each_command_of_a_session_runs_once_over_kills(
        self, victim: str, split: Split, backend: str
    ) -> None:
        async with split.control.client() as client, client.sandbox(backend=backend, image="base") as sandbox:
            talks = [asyncio.create_task(_talk(sandbox, number)) for number in range(TALKS)]
            for _ in range(2 if victim == "edge" else 1):
                await asyncio.sleep(pace.within(0.5))
                await split.strike(victim)
            async with asyncio.timeout(pace.within(60)):
                await asyncio.gather(*talks)

    async def test_a_dead_inside_is_told_as_the_sandboxes_own_fault(
        self, client: Client, backend: str, offered: frozenset[str]
    ) -> None:
        if "memory" not in offered:
            pytest.skip("it does not limit memory")
        async with client.sandbox(backend=backend, image="base", limits={"memory": 64 << 20}) as sandbox:
            bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: x = bytearray(1 << 20)"
            result = await sandbox.run(["python3", "-c", bomb], timeout=3)
            assert result.ended in {Ended.OOM, Ended.TIMEOUT, Ended.SIGNAL, Ended.EXIT}
            try:
                assert (await sandbox.run(["true"])).ok
            except DsecError as error:
                assert error.failure is Failure.LIMIT  # noqa: PT017 - either outcome is right, infra is not


def _small(offered: frozenset[str]) -> LimitArgs:
    """So that a hundred fit on any machine."""
    return {"memory": 64 << 20} if "memory" in offered else {}


async def _work(client: Client, spec: SpecArgs, key: str) -> Sandbox | DsecError:
    """One rollout: create by key, then append a line once and see exactly one."""
    try:
        sandbox = await client.create(key=key, **spec)
        for step in range(3):
            result = await sandbox.run("echo x >> /steps; wc -l < /steps", key=f"{key}-{step}")
            assert result.stdout.strip() == str(step + 1)
    except DsecError as error:
        return error
    return sandbox


async def _talk(sandbox: Sandbox, number: int) -> None:
    """Commands that count in the shell itself and in what they print, some of them long ones."""
    async with sandbox.session(key=f"talk-{number}") as sh:
        for turn in range(1, 16):
            script = f"n=$((n+1)); echo {number} $n; sleep 0.0{turn % 10}; seq $((n * 100)); (exit $n)"
            result = await sh.run(script, key=f"talk-{number}-{turn}")
            assert result.code == turn
            assert result.stdout == f"{number} {turn}\n" + "".join(f"{i}\n" for i in range(1, turn * 100 + 1))


async def _destroy(client: Client, name: str) -> None:
    await (await client.attach(name)).destroy()


async def _no_duplicates(
    client: Client, spec: SpecArgs, key: str, acknowledged: list[str], outcomes: list[Sandbox | DsecError]
) -> None:
    """The same keys name the same sandboxes."""
    for number in (0, ROLLOUTS // 2, ROLLOUTS - 1):
        outcome = outcomes[number]
        if isinstance(outcome, Sandbox):
            again = await client.create(key=f"{key}-{number}", **spec)
            assert again.id == outcome.id
            assert again.id in acknowledged
