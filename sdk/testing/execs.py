"""Commands: exit codes, stdin, timeouts that kill the whole tree, ends that wait for nobody's children."""

from __future__ import annotations

import asyncio
import time

import pytest

from dsec.bus.errors import NoSuchProgram
from dsec.bus.messages import Ended
from dsec.sdk import Client, Sandbox
from dsec.sdk.testing import pace

SERVER = "python3 -m http.server 3000 & wait"
WRITER = "i=0; while :; do i=$((i+1)); echo $i >> /written; done"
LISTENING = "import socket; socket.create_connection(('127.0.0.1', 3000), 1)"


async def processes(sandbox: Sandbox) -> int:
    """How many processes the sandbox has, PID 1 and the counting command left out."""
    listed = await sandbox.run(["/bin/ls", "/proc"])
    return len([name for name in listed.stdout.split() if name.isdigit()]) - 2


class ExecSuite:
    @pytest.mark.parametrize("code", [0, 1, 7, 126, 127, 255])
    async def test_an_exit_code_is_exact(self, sandbox: Sandbox, code: int) -> None:
        result = await sandbox.run(f"exit {code}")
        assert (result.ended, result.code) == (Ended.EXIT, code)

    async def test_a_signal_is_told(self, sandbox: Sandbox) -> None:
        result = await sandbox.run("kill -TERM $$")
        assert (result.ended, result.signal, result.code) == (Ended.SIGNAL, 15, None)

    @pytest.mark.parametrize("argv", [["/no/such"], ["no-such-program"], ["/etc/passwd"], ["/etc"]])
    async def test_a_program_that_cannot_run_is_typed(self, sandbox: Sandbox, argv: list[str]) -> None:
        with pytest.raises(NoSuchProgram):
            await sandbox.run(argv)

    async def test_a_missing_directory_or_user_is_typed(self, sandbox: Sandbox) -> None:
        with pytest.raises(NoSuchProgram):
            await sandbox.run(["true"], cwd="/no/such")
        with pytest.raises(NoSuchProgram):
            await sandbox.run(["true"], user="nobody-here")

    async def test_cwd_env_and_user_hold(self, sandbox: Sandbox) -> None:
        result = await sandbox.run("pwd; echo $A; id -u", cwd="/tmp", env={"A": "x y"}, user="nobody")
        assert result.stdout.split("\n")[:3] == ["/tmp", "x y", "65534"]

    async def test_case_1_a_server_dies_with_its_timeout(self, sandbox: Sandbox) -> None:
        before = await processes(sandbox)
        result = await sandbox.run(SERVER, timeout=2)
        assert result.ended is Ended.TIMEOUT
        await asyncio.sleep(1)
        assert (await sandbox.run(["python3", "-c", LISTENING])).code != 0
        assert await processes(sandbox) == before

    async def test_case_2_a_timeout_comes_in_time_and_nothing_after_it(self, sandbox: Sandbox) -> None:
        started = time.monotonic()
        result = await sandbox.run(f"sleep {pace.within(9)}; echo late", timeout=2)
        assert time.monotonic() - started < pace.within(6)
        assert (result.ended, result.stdout) == (Ended.TIMEOUT, "")

    async def test_output_before_a_timeout_is_kept(self, sandbox: Sandbox) -> None:
        result = await sandbox.run("echo early; sleep 9", timeout=pace.within(1.5))
        assert (result.ended, result.stdout) == (Ended.TIMEOUT, "early\n")

    async def test_case_3_a_loop_stops_using_cpu(self, sandbox: Sandbox) -> None:
        before = await processes(sandbox)
        result = await sandbox.run("while :; do :; done", timeout=1)
        assert result.ended is Ended.TIMEOUT
        assert await processes(sandbox) == before
        assert result.cpu_ms > 100

    @pytest.mark.parametrize(
        "command",
        [WRITER, f"setsid sh -c '{WRITER}' & wait", f"trap '' TERM INT HUP; {WRITER}"],
        ids=["loop", "daemon", "deaf"],
    )
    async def test_case_30_nothing_writes_once_the_deadline_has_passed(
        self, sandbox: Sandbox, command: str
    ) -> None:
        assert (await sandbox.run(command, timeout=pace.within(1.5))).ended is Ended.TIMEOUT
        written = await sandbox.files.read("/written")
        assert written
        await asyncio.sleep(pace.within(0.3))
        assert await sandbox.files.read("/written") == written

    @pytest.mark.parametrize(
        "command",
        ["sleep 100 & echo done", "sleep 100 2>&1 & echo done", "setsid sleep 100 & echo done"],
    )
    async def test_cases_4_and_5_an_exec_ends_with_its_leader(self, sandbox: Sandbox, command: str) -> None:
        before = await processes(sandbox)
        started = time.monotonic()
        result = await sandbox.run(command, timeout=pace.within(40))
        assert time.monotonic() - started < pace.within(20)
        assert (result.ended, result.stdout) == (Ended.EXIT, "done\n")
        assert await processes(sandbox) == before

    async def test_a_tree_that_ignores_and_escapes_signals_dies_with_its_timeout(
        self, sandbox: Sandbox
    ) -> None:
        before = await processes(sandbox)
        escape = "(setsid sh -c 'trap \"\" TERM; sleep 100' &)"
        tree = f"trap '' TERM INT HUP; for i in 1 2 3 4 5 6; do {escape} ; done; wait; sleep 100"
        assert (await sandbox.run(tree, timeout=1)).ended is Ended.TIMEOUT
        assert await processes(sandbox) == before

    async def test_case_11_stdin_is_read_and_missing_stdin_is_an_end_of_file(self, sandbox: Sandbox) -> None:
        assert (await sandbox.run("read x; echo got:$x", stdin=b"hello\n", timeout=5)).stdout == "got:hello\n"
        assert (await sandbox.run(["cat"], timeout=5)).ended is Ended.EXIT
        big = bytes(range(256)) * 2000
        assert (await sandbox.run(["cat"], stdin=big, timeout=10)).stdout_bytes == big

    async def test_stdin_can_be_written_while_the_command_runs(self, sandbox: Sandbox) -> None:
        running = await sandbox.start(["cat"], stdin_open=True)
        await running.write_stdin(b"one\n")
        await running.write_stdin(b"two\n")
        await running.close_stdin()
        result = await running.wait()
        assert (result.code, result.stdout) == (0, "one\ntwo\n")

    async def test_a_signal_reaches_the_leader(self, sandbox: Sandbox) -> None:
        running = await sandbox.start("trap 'echo caught; exit 5' USR1; while :; do sleep 0.1; done")
        await asyncio.sleep(0.5)
        await running.signal(10)
        result = await running.wait()
        assert (result.code, result.stdout) == (5, "caught\n")

    async def test_the_same_key_runs_a_command_once(self, sandbox: Sandbox) -> None:
        for _ in range(3):
            result = await sandbox.run("echo x >> /count; cat /count", key="run-once")
            assert result.stdout == "x\n"

    async def test_case_37_short_outputs_are_not_timeouts(self, sandbox: Sandbox) -> None:
        print_much = "import sys; sys.stdout.write('x' * 70000)"
        result = await sandbox.run(["python3", "-c", print_much], timeout=10)
        assert (result.ended, len(result.stdout)) == (Ended.EXIT, 70_000)

    async def test_case_37_many_at_once_all_end_well(self, sandbox: Sandbox) -> None:
        gate, limit = asyncio.Semaphore(pace.fewer(64)), pace.within(30)

        async def one(number: int) -> None:
            async with gate:
                result = await sandbox.run(
                    f"head -c 70000 /dev/zero | tr '\\0' a; echo {number}", timeout=limit
                )
                assert (result.ended, result.stdout[70_000:]) == (Ended.EXIT, f"{number}\n")

        await asyncio.gather(*(one(number) for number in range(pace.fewer(500))))

    async def test_a_process_limit_is_a_result_and_the_sandbox_lives(
        self, client: Client, backend: str, offered: frozenset[str]
    ) -> None:
        _needs(offered, "pids")
        async with client.sandbox(backend=backend, image="base", limits={"pids": 30}) as small:
            result = await small.run("for i in $(seq 100); do sleep 5 & done; wait", timeout=3)
            assert result.ended in {Ended.EXIT, Ended.TIMEOUT}
            assert (await small.run(["true"])).code == 0

    async def test_a_memory_limit_is_told_as_oom_and_the_sandbox_lives(
        self, client: Client, backend: str, offered: frozenset[str]
    ) -> None:
        _needs(offered, "memory")
        async with client.sandbox(backend=backend, image="base", limits={"memory": 64 << 20}) as small:
            result = await small.run(["python3", "-c", "x = bytearray(200 << 20)"], timeout=pace.within(30))
            assert result.ended is Ended.OOM
            assert (await small.run(["true"])).code == 0


def _needs(offered: frozenset[str], limit: str) -> None:
    if limit not in offered:
        pytest.skip(f"it does not limit {limit}")
