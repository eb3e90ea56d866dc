"""Commands on a terminal: size, keys, hang-up, and what they print."""

from __future__ import annotations

import asyncio

import pytest

from dsec.bus.errors import NoSuchExec, SpecError
from dsec.bus.messages import Ended
from dsec.sdk import Client, Exec, Sandbox
from dsec.sdk.testing import pace

SIZE = (30, 100)


async def until(running: Exec, expected: bytes) -> bytes:
    """What it prints up to and with `expected`."""
    seen = b""
    async with asyncio.timeout(pace.within(20)):
        while expected not in seen:
            seen += await anext(running)
    return seen


class TerminalSuite:
    async def test_a_command_finds_a_terminal_of_its_own(self, sandbox: Sandbox) -> None:
        script = "test -t 0 -a -t 1 -a -t 2 && stty size && tty && echo $TERM && echo err >&2; exit 3"
        running = await sandbox.start(script, terminal=SIZE)
        result = await running.wait()
        assert (result.ended, result.code, result.stderr) == (Ended.EXIT, 3, "")
        lines = result.stdout.split("\r\n")
        assert lines[0] == "30 100"
        assert lines[1].startswith("/dev/pts/")
        assert lines[2:] == ["xterm-256color", "err", ""]

    async def test_a_user_of_its_own_may_open_it_by_name(self, sandbox: Sandbox) -> None:
        running = await sandbox.start('echo there >"$(tty)"; id -u', terminal=SIZE, user="nobody")
        assert (await running.wait()).stdout == "there\r\n65534\r\n"

    async def test_keys_reach_it_and_control_c_interrupts(self, sandbox: Sandbox) -> None:
        running = await sandbox.start("stty -echo; echo ready; read x; echo got $x; sleep 100", terminal=SIZE)
        await until(running, b"ready")
        await running.write_stdin("some words\r")
        await until(running, b"got some words")
        await running.write_stdin(b"\x03")
        result = await running.wait()
        assert result.signal == 2 or result.code == 130

    async def test_a_new_size_is_told(self, sandbox: Sandbox) -> None:
        script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done"
        running = await sandbox.start(script, terminal=SIZE)
        await until(running, b"ready")
        await running.resize(50, 132)
        assert "50 132" in (await running.wait()).stdout

    async def test_hanging_up_ends_it(self, sandbox: Sandbox) -> None:
        running = await sandbox.start("echo ready; sleep 100", terminal=SIZE)
        await until(running, b"ready")
        await running.close_stdin()
        result = await running.wait()
        assert result.signal == 1 or result.code == 129

    async def test_long_output_is_complete(self, sandbox: Sandbox) -> None:
        running = await sandbox.start("stty -opost; seq 200000; printf END", terminal=SIZE)
        result = await running.wait()
        assert result.stdout == "".join(f"{number}\n" for number in range(1, 200_001)) + "END"

    async def test_a_child_that_keeps_the_terminal_holds_nothing_up(self, sandbox: Sandbox) -> None:
        running = await sandbox.start("(trap '' HUP; sleep 100) & echo done", terminal=SIZE)
        async with asyncio.timeout(pace.within(5)):
            assert (await running.wait()).stdout == "done\r\n"

    async def test_an_interactive_shell_is_left_and_found_again(
        self, client: Client, sandbox: Sandbox
    ) -> None:
        running = await sandbox.start(["bash", "--norc", "-i"], terminal=SIZE, env={"PS1": "> "})
        await running.write_stdin("A=kept\r")
        await until(running, b"A=kept")
        await running.close()
        again = client.exec(sandbox.id, running.id)
        await again.write_stdin("echo $((6 * 7)) $A; exit 7\r")
        result = await again.wait()
        assert "42 kept" in result.stdout
        assert result.code == 7

    async def test_what_has_no_terminal_has_no_size(self, sandbox: Sandbox) -> None:
        running = await sandbox.start("read x", stdin_open=True)
        with pytest.raises(SpecError):
            await running.resize(10, 10)
        await running.close_stdin()
        await running.wait()
        with pytest.raises(NoSuchExec):
            await running.resize(10, 10)
        with pytest.raises(SpecError):
            await sandbox.start("true", terminal=(0, 80))
        with pytest.raises(SpecError):
            await sandbox.start("true", terminal=SIZE, stdin=b"x")
