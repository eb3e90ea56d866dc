"""Commands that are left: listed, found again by their id, read from an offset, written to, signalled."""

from __future__ import annotations

import asyncio
from signal import Signals

import pytest

from dsec.bus.errors import DsecError, LimitError, NoSuchExec, NoSuchSandbox, SpecError, Unsupported
from dsec.bus.messages import Ended
from dsec.sdk import Client, Sandbox
from dsec.sdk.spec_args import LimitArgs
from dsec.sdk.testing import pace, traces

COUNT = "i=0; while [ $i -lt 50 ]; do echo line $i; i=$((i+1)); sleep 0.01; done"
LINES = "".join(f"line {i}\n" for i in range(50))
HOG = "python3 -c 'x = bytearray(200 << 20); print(len(x))'"
FORKS = """
import os, time
n = 0
try:
    while n < 60:
        if os.fork() == 0:
            time.sleep(2)
            os._exit(0)
        n += 1
except OSError:
    pass
print(n)
"""


class DetachedSuite:
    async def test_commands_are_listed_with_what_became_of_them(self, sandbox: Sandbox) -> None:
        first = await sandbox.run(["sh", "-c", "exit 3", "x" * 2000])
        left = await sandbox.start("sleep 100", detach=True, timeout=60)
        async with sandbox.session() as sh:
            turn = await sh.run("true", durable=True)
            shown = await sandbox.start("read x", terminal=(9, 9))
            every = [info async for info in sandbox.execs()]
            running = {info.exec async for info in sandbox.execs(running=True)}
        assert [info.exec for info in every] == [first.exec, left.id, sh.id, turn.exec, shown.id]
        assert [info.kind for info in every] == ["command", "command", "session", "command", "terminal"]
        assert [info.log for info in every] == [1, 2, 3, 4, 5]
        assert running >= {left.id, sh.id, shown.id}
        assert first.exec not in running
        done, detached, _, in_session, _ = every
        assert done.end is not None
        assert (done.end.code, done.argv[:3], len(done.argv[3])) == (3, ["sh", "-c", "exit 3"], 500)
        assert (detached.end, detached.detach, detached.timeout) == (None, True, 60)
        assert in_session.session == sh.id
        await left.kill()

    async def test_a_long_list_comes_in_pages(self, sandbox: Sandbox) -> None:
        argument = "x" * 500
        made = [(await sandbox.start(["true", *([argument] * 19)], detach=True)).id for _ in range(40)]
        assert [info.exec async for info in sandbox.execs()] == made

    async def test_a_command_is_found_by_its_id_and_read_from_an_offset(
        self, client: Client, sandbox: Sandbox
    ) -> None:
        left = await sandbox.start(COUNT, detach=True)
        whole, rest = client.exec(sandbox.id, left.id), client.exec(sandbox.id, left.id, offset=100)
        results = await asyncio.gather(whole.wait(), rest.wait())
        assert [result.stdout for result in results] == [LINES, LINES[100:]]
        assert {result.code for result in results} == {0}
        again = await client.exec(sandbox.id, left.id).wait()
        assert again.stdout == LINES

    async def test_a_command_is_written_to_by_several_one_after_the_other(
        self, client: Client, sandbox: Sandbox
    ) -> None:
        left = await sandbox.start("cat", stdin_open=True)
        await left.write_stdin("one ")
        await client.exec(sandbox.id, left.id).write_stdin("two ")
        third = client.exec(sandbox.id, left.id)
        await third.write_stdin("three", eof=True)
        await third.close_stdin()
        assert (await left.wait()).stdout == "one two three"

    async def test_a_command_is_signalled_by_its_id(self, client: Client, sandbox: Sandbox) -> None:
        left = await sandbox.start("trap 'echo bye; exit 5' TERM; while :; do sleep 0.05; done", detach=True)
        await asyncio.sleep(pace.within(0.3))
        found = client.exec(sandbox.id, left.id)
        await found.signal(Signals.SIGTERM)
        result = await found.wait()
        assert (result.ended, result.code, result.stdout) == (Ended.EXIT, 5, "bye\n")
        with pytest.raises(NoSuchExec):
            await found.signal(Signals.SIGTERM)
        with pytest.raises(NoSuchExec):
            await client.exec(sandbox.id, "e-neverwas").signal(Signals.SIGTERM)

    async def test_lists_of_nothing_are_typed(self, client: Client, sandbox: Sandbox) -> None:
        assert [info async for info in sandbox.execs()] == []
        await sandbox.destroy()
        with pytest.raises(NoSuchSandbox):
            _ = [info async for info in sandbox.execs()]
        with pytest.raises(SpecError):
            client.exec(sandbox.id, "not-an-id")


class ExecLimitSuite:
    """Limits of one command below those of its sandbox."""

    @pytest.fixture(autouse=True)
    def _offered(self, offered: frozenset[str]) -> None:
        if not {"memory", "pids", "cpu"} <= offered:
            pytest.skip("it does not limit all of them")

    async def test_memory_of_a_command_is_its_own(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(HOG, limits={"memory": 64 << 20})
        assert (result.ended, result.stdout, result.limits) == (Ended.OOM, "", {"memory": 64 << 20})
        free = await sandbox.run(HOG)
        assert (free.stdout, free.limits) == (f"{200 << 20}\n", {})

    async def test_processes_of_a_command_are_its_own(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(["python3", "-c", FORKS], limits={"pids": 10})
        assert int(result.stdout) <= 10
        assert int((await sandbox.run(["python3", "-c", FORKS])).stdout) == 60

    async def test_a_command_is_slowed_to_its_share(self, sandbox: Sandbox) -> None:
        result = await sandbox.run("while :; do :; done", limits={"cpu": 0.1}, timeout=2)
        assert result.cpu_ms < 600

    async def test_a_session_has_limits_for_all_that_runs_in_it(self, sandbox: Sandbox) -> None:
        async with sandbox.session(limits={"memory": 64 << 20, "pids": 30}) as sh:
            assert (await sh.run("echo fine")).stdout == "fine\n"
            assert (await sh.run(HOG)).ended is Ended.OOM
            assert (await sh.run("echo alive; (exit 137)")).ended is Ended.EXIT

    async def test_limits_that_cannot_be_are_refused(self, sandbox: Sandbox) -> None:
        refused: list[tuple[LimitArgs, type[DsecError], str]] = [
            ({"memory": 1 << 45}, LimitError, "limits.memory"),
            ({"nofile": 64}, Unsupported, "limits.nofile"),
            ({"cpu": -1}, SpecError, "limits.cpu"),
        ]
        for limits, kind, field in refused:
            with pytest.raises(kind) as error:
                await sandbox.run("true", limits=limits)
            assert error.value.field == field
        assert (await sandbox.run("true")).ok

    async def test_nothing_of_a_limited_command_is_left(self, sandbox: Sandbox) -> None:
        for _ in range(5):
            await sandbox.run("sleep 100 & echo", limits={"memory": 64 << 20, "pids": 20, "cpu": 0.5})
        left = await sandbox.start("echo; sleep 100", limits={"memory": 64 << 20})
        await left.kill()
        assert (await left.wait()).signal == Signals.SIGKILL
        for _ in range(round(pace.within(100))):
            if not (found := [path for path in traces.cgroups(sandbox.id) if "/e-" in path]):
                break
            await asyncio.sleep(0.05)
        assert found == []
