"""`dsec shell` on a real terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import signal
import sys
import termios
from collections.abc import AsyncIterator

import pytest

from dsec.sdk import Sandbox
from tests.edge.support import Site

pytestmark = pytest.mark.node


class Typist:
    """A `dsec shell` on a terminal, whose master is here."""

    def __init__(self, process: asyncio.subprocess.Process, master: int, slave: int) -> None:
        self.process, self.master, self.slave = process, master, slave
        self.before = termios.tcgetattr(slave)
        self.seen = b""

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    async def until(self, expected: str) -> str:
        """What was shown up to it."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.master, ready.set)
        try:
            async with asyncio.timeout(20):
                while expected.encode() not in self.seen:
                    await ready.wait()
                    ready.clear()
                    with contextlib.suppress(BlockingIOError):
                        self.seen += os.read(self.master, 65_536)
        except TimeoutError:
            pytest.fail(f"{expected!r} does not come after {self.seen!r}")
        finally:
            loop.remove_reader(self.master)
        shown, _, self.seen = self.seen.partition(expected.encode())
        return shown.decode(errors="replace")

    async def code(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 20)

    def restored(self) -> bool:
        return termios.tcgetattr(self.slave) == self.before


@contextlib.asynccontextmanager
async def shell(site: Site, sandbox: str, *options: str) -> AsyncIterator[Typist]:
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    termios.tcsetwinsize(master, (40, 120))
    where = ["--url", site.stack.url, "--credentials", str(site.stack.home.credentials / "u-admin.json")]
    argv = [sys.executable, "-m", "dsec.sdk.cli", "shell", *where, sandbox, *options]
    before = termios.tcgetattr(slave)
    process = await asyncio.create_subprocess_exec(*argv, stdin=slave, stdout=slave, stderr=slave)
    typist = Typist(process, master, slave)
    typist.before = before
    try:
        yield typist
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)
        os.close(slave)


async def test_a_shell_is_typed_into_and_its_exit_code_passed_on(site: Site, sandbox: Sandbox) -> None:
    async with shell(site, sandbox.id) as typist:
        typist.type("PS1='> '; stty size; echo $((6 * 7))\r")
        await typist.until("40 120")
        await typist.until("42")
        assert not typist.restored()
        termios.tcsetwinsize(typist.master, (50, 132))
        typist.process.send_signal(signal.SIGWINCH)
        await asyncio.sleep(0.5)
        typist.type("stty size\r")
        await typist.until("50 132")
        typist.type("sleep 100\r")
        await asyncio.sleep(0.3)
        typist.type("\x03")
        typist.type("exit 7\r")
        assert await typist.code() == 7
        assert typist.restored()


async def test_a_shell_is_left_running_and_found_again(site: Site, sandbox: Sandbox) -> None:
    async with shell(site, sandbox.id) as typist:
        typist.type("A=kept; echo re''ady\r")
        await typist.until("ready")
        typist.type("\x1d")
        shown = await typist.until("left running") + await typist.until("\n")
        assert await typist.code() == 0
        assert typist.restored()
    found = re.search(r"--attach (e-[a-z0-9]+)", shown)
    assert found is not None
    async with shell(site, sandbox.id, "--attach", found[1]) as typist:
        await typist.until("ready")
        typist.type("echo $A.\r")
        await typist.until("kept.")
        typist.type("exit 3\r")
        assert await typist.code() == 3


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
async def test_the_terminal_is_put_right_when_it_is_ended(
    site: Site, sandbox: Sandbox, signum: signal.Signals
) -> None:
    async with shell(site, sandbox.id) as typist:
        typist.type("echo re''ady\r")
        await typist.until("ready")
        typist.process.send_signal(signum)
        assert await typist.code() != 0
        assert typist.restored()


async def test_errors_are_told_on_a_terminal_that_was_put_right(site: Site, sandbox: Sandbox) -> None:
    async with shell(site, sandbox.id, "--", "/no/such/shell") as typist:
        await typist.until("error: no_such_program")
        assert await typist.code() == 125
        assert typist.restored()
    async with shell(site, sandbox.id) as typist:
        typist.type("echo re''ady\r")
        await typist.until("ready")
        await sandbox.destroy()
        await typist.code()
        assert typist.restored()
