"""What chronus gives a session's shell and a command on a terminal, and keeps for the next connection."""

from __future__ import annotations

import asyncio
import os
import termios

import pytest

from dsec.bus.chronus.guest import Command
from dsec.bus.chronus.protocol import SESSION_BASE
from dsec.bus.errors import AgentCrippled
from tests.chronus.inside import Inside, drain, exited, new_id, read_some

pytestmark = pytest.mark.node

SHELL = ("sh", f"/dev/fd/{SESSION_BASE}")


async def readable(descriptor: int) -> bytes:
    async with asyncio.timeout(10):
        return await read_some(descriptor)


async def test_a_shell_finds_its_channels_and_they_are_found_again(box: Inside) -> None:
    async with box.guest() as guest:
        started = await guest.start(new_id(), Command(SHELL, session=True))
        assert started.session is not None
        os.write(started.session.commands, b"echo one; echo A >/proc/self/fd/%d\n" % (SESSION_BASE + 1))
        assert await readable(started.session.statuses) == b"A\n"
        assert await readable(started.stdout) == b"one\n"
        started.detach()
    async with box.guest() as guest:
        again = await guest.attach(started.id)
        assert again.session is not None
        assert again.stdin is None
        os.pwrite(again.session.input, b"given", 0)
        os.write(again.session.commands, b"cat </proc/self/fd/%d; exit 3\n" % (SESSION_BASE + 2))
        assert (await exited(again)).code == 3
        assert await drain(again.stdout) == b"given"
        await again.release()


async def test_the_inside_can_neither_read_statuses_nor_write_commands_or_input(box: Inside) -> None:
    async with box.guest() as guest:
        started = await guest.start(new_id(), Command(SHELL, session=True, user="nobody"))
        assert started.session is not None
        for number, mode in ((0, ">"), (1, "<"), (2, ">")):
            path = f"/proc/self/fd/{SESSION_BASE + number}"
            os.write(started.session.commands, f"(: {mode}{path}) 2>/dev/null || echo refused\n".encode())
            assert await readable(started.stdout) == b"refused\n"
        await started.release()


async def test_a_command_runs_on_a_terminal_that_outlives_the_connection(box: Inside) -> None:
    async with box.guest() as guest:
        started = await guest.start(
            new_id(), Command(("sh", "-c", "stty size; read x; stty size"), terminal=(7, 9))
        )
        assert started.stdin is not None
        assert await readable(started.stdin) == b"7 9\r\n"
        started.detach()
    async with box.guest() as guest:
        again = await guest.attach(started.id)
        assert again.stdin is not None
        termios.tcsetwinsize(again.stdin, (8, 10))
        os.write(again.stdin, b"\r")
        assert (await exited(again)).code == 0
        assert (await readable(again.stdin)).endswith(b"8 10\r\n")
        await again.release()


async def test_a_master_that_is_no_terminal_is_not_believed(
    box: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the inside would answer that had taken its agent over."""
    monkeypatch.setattr("dsec.bus.chronus.exec._TIOCGPTN", 0xDEAD)
    async with box.guest() as guest:
        with pytest.raises(AgentCrippled):
            await guest.start(name := new_id(), Command(("sleep", "100"), terminal=(7, 9)))
    monkeypatch.undo()
    async with box.guest() as guest:
        await (await guest.attach(name)).release()
