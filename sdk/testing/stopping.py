"""Stopping and starting: what was written stays, what ran is told as killed, nothing else is lost."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from dsec.bus.errors import NoSuchSandbox, SessionEnded, SpecError
from dsec.bus.messages import Ended, State
from dsec.sdk import Client, Sandbox
from dsec.sdk.testing import pace, traces
from dsec.sdk.testing.recovery import Split

WRITE = (
    "import os, sys; data = os.urandom(10 << 20); open('/data', 'wb').write(data);"
    "import hashlib; print(hashlib.sha256(data).hexdigest())"
)


class StoppingSuite:
    async def test_ten_megabytes_are_the_same_after_a_stop_and_a_start(self, sandbox: Sandbox) -> None:
        for _ in range(2):
            told = (await sandbox.run(["python3", "-c", WRITE])).stdout.strip()  # nothing is synced
            assert (await sandbox.stop()).state is State.STOPPED
            assert (await sandbox.start()).state is State.RUNNING
            assert hashlib.sha256(await sandbox.files.read("/data")).hexdigest() == told
            assert (await sandbox.run(["sha256sum", "/data"])).stdout.startswith(told)

    async def test_what_ran_is_told_as_killed_and_its_output_is_whole(self, sandbox: Sandbox) -> None:
        running = await sandbox.start("seq 20000; exec sleep 1000")
        seen = [await anext(lines := running.lines())]
        async with sandbox.session() as sh:
            await sh.run("cd /tmp")
            await sandbox.stop()
            seen += [line async for line in lines]
            assert seen == [str(i) for i in range(1, 20001)]
            result = await running.wait()
            assert (result.ended, result.signal) == (Ended.SIGNAL, 9)
            await sandbox.start()
            with pytest.raises(SessionEnded):
                await sh.run("pwd")
        assert (await sandbox.run("ps -e | wc -l || true")).ok

    async def test_commands_have_time_to_end(self, sandbox: Sandbox) -> None:
        running = await sandbox.start(
            "trap 'echo saved > /saved; exit 3' TERM; echo on; while :; do sleep 0.05; done"
        )
        assert await anext(running.lines()) == "on"
        await sandbox.stop(grace=min(20.0, pace.within(10)))
        assert (await running.wait()).code == 3
        await sandbox.start()
        assert await sandbox.files.read("/saved") == b"saved\n"

    async def test_both_may_be_repeated_and_a_stopped_one_tells_so(self, sandbox: Sandbox) -> None:
        await asyncio.gather(*(sandbox.stop() for _ in range(3)))
        assert (await sandbox.stat()).state is State.STOPPED
        for refused in (sandbox.run(["true"]), sandbox.files.read("/etc/passwd"), sandbox.resume()):
            with pytest.raises(SpecError, match="stopped"):
                await refused
        await asyncio.gather(*(sandbox.start() for _ in range(3)))
        await sandbox.start()
        assert (await sandbox.run(["true"])).ok

    async def test_the_same_command_goes_on_to_have_run_once(self, sandbox: Sandbox) -> None:
        first = await sandbox.run("echo x >> /lines; cat /lines", key="before-the-stop")
        await sandbox.stop()
        await sandbox.start()
        again = await sandbox.run("echo x >> /lines; cat /lines", key="before-the-stop")
        assert (again.stdout, again.exec) == (first.stdout, first.exec)

    async def test_nothing_is_left_of_a_stopped_one_that_is_destroyed(
        self, client: Client, backend: str, home: Path
    ) -> None:
        async with client.sandbox(backend=backend, image="base") as sandbox:
            await sandbox.stop()
            await sandbox.destroy()
            with pytest.raises(NoSuchSandbox):
                await sandbox.start()
        assert traces.of(home, sandbox.id) == []

    async def test_a_destroy_ends_a_start_under_way(self, client: Client, backend: str, home: Path) -> None:
        for pause in (0.0, 0.005, 0.02):
            async with client.sandbox(backend=backend, image="base") as sandbox:
                await sandbox.stop()
                starting = asyncio.create_task(sandbox.start())
                await asyncio.sleep(pause)
                await sandbox.destroy()
                assert traces.of(home, sandbox.id) == []
                await asyncio.gather(starting, return_exceptions=True)

    async def test_its_time_to_live_goes_on(self, client: Client, backend: str) -> None:
        sandbox = await client.create(backend=backend, image="base", ttl=2.0)
        await sandbox.stop()
        async with asyncio.timeout(pace.within(15)):
            while True:
                try:
                    await sandbox.stat()
                except NoSuchSandbox:
                    return
                await asyncio.sleep(0.3)


class StoppingRecoverySuite:
    async def test_a_kill_at_any_moment_leaves_it_stopped_or_running(
        self, split: Split, backend: str
    ) -> None:
        async with split.control.client() as client, client.sandbox(backend=backend, image="base") as sandbox:
            moments = pace.some((0.0, 0.008, 0.03))
            for number, pause in enumerate(map(pace.within, moments)):
                running = await sandbox.start("echo on; exec sleep 1000")
                reader = asyncio.create_task(running.wait())
                await _struck(split, sandbox.stop(), pause)
                assert (await sandbox.stat()).state is State.STOPPED
                async with asyncio.timeout(pace.within(30)):
                    assert (await reader).signal == 9
                await _struck(split, sandbox.start(), pause)
                assert (await sandbox.run(f"echo {number} >> /n; wc -l < /n")).stdout == f"{number + 1}\n"
            await sandbox.stop()
            await split.strike("edge")
            assert (await sandbox.stat()).state is State.STOPPED
            assert (await sandbox.start()).state is State.RUNNING
            assert (await sandbox.run("wc -l < /n")).stdout == f"{len(moments)}\n"
        assert await asyncio.to_thread(traces.of, split.home, sandbox.id) == []


async def _struck(split: Split, asked: Coroutine[Any, Any, object], pause: float) -> None:
    """The node's program is killed over it, and the client asks again."""
    task = asyncio.create_task(asked)
    await asyncio.sleep(pause)
    await split.strike("edge")
    await task
