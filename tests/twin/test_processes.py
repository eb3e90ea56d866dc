"""The twin in processes of their own: Ctrl-C at any moment, forks, ends without leaving the block."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from dsec.bus.errors import Overloaded
from tests.twin.conftest import Place

WITHIN = 30.0
HEAD = """
import os, signal, sys, threading, time
import dsec
def say(*what): print(*what, flush=True)
def opened(): return dsec.sync.Client({url!r}, {credentials!r}, patience=10.0)
"""


@dataclass
class Program:
    """A program that uses the twin."""

    process: asyncio.subprocess.Process

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), WITHIN)).decode().strip()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    async def end(self) -> tuple[int, str, str]:
        """Exit code, rest of the output, errors."""
        out, err = await asyncio.wait_for(self.process.communicate(), WITHIN)
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


Start = Callable[[str], Awaitable[Program]]


@asynccontextmanager
async def program(place: Place, text: str) -> AsyncIterator[Program]:
    head = HEAD.format(url=place.url, credentials=str(place.credentials))
    argv = (sys.executable, "-W", "error", "-c", head + textwrap.dedent(text))
    process = await asyncio.create_subprocess_exec(*argv, stdout=PIPE, stderr=PIPE)
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def eventually(place: Place, seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not seen():  # noqa: ASYNC110 - the peer tells nobody
            await asyncio.sleep(0.02)


async def test_an_interrupted_command_is_given_up_and_its_sandbox_destroyed(place: Place) -> None:
    text = """
    with opened() as client, client.sandbox(image="base") as sandbox:
        say("ready")
        sandbox.run("sleep 60")
    """
    async with program(place, text) as running:
        assert await running.line() == "ready"
        await eventually(place, lambda: any(verb == "exec.start" for verb, _ in place.peer.ops))
        await asyncio.sleep(0.3)
        running.interrupt()
        code, _, err = await running.end()
    assert (code, err.count("KeyboardInterrupt")) == (-signal.SIGINT, 1), err
    assert place.peer.done["destroy"] == 1


async def test_an_interrupted_create_leaves_no_sandbox(place: Place) -> None:
    place.peer.refuse["sandbox.create"] = [Overloaded("busy", retry_after=1.0)]
    text = """
    with opened() as client:
        say("ready")
        with client.sandbox(image="base"):
            say("never")
    """
    async with program(place, text) as running:
        assert await running.line() == "ready"
        await eventually(place, lambda: bool(place.peer.ops))
        running.interrupt()
        code, out, err = await running.end()
    assert (code, out) == (-signal.SIGINT, ""), err
    assert place.peer.done["destroy"] == 1  # it was created after all, and nobody knows its id


async def test_an_interruption_of_the_cleaning_up_waits_until_it_is_done(place: Place) -> None:
    place.peer.refuse["sandbox.destroy"] = [Overloaded("busy", retry_after=1.0)]
    text = """
    with opened() as client:
        try:
            with client.sandbox(image="base"):
                say("leaving")
        except KeyboardInterrupt:
            say("interrupted")
    """
    async with program(place, text) as running:
        assert await running.line() == "leaving"
        await eventually(place, lambda: any(verb == "sandbox.destroy" for verb, _ in place.peer.ops))
        running.interrupt()
        assert await running.end() == (0, "interrupted\n", "")
    assert place.peer.done["destroy"] == 1


async def test_an_interrupted_iterator_reads_on_when_it_is_asked_again(place: Place) -> None:
    text = """
    with opened() as client:
        running = client.create(image="base").start("sleep 1; echo late")
        say("ready")
        try:
            for chunk in running:
                say("too early")
        except KeyboardInterrupt:
            say(running.wait().stdout)
    """
    async with program(place, text) as running:
        assert await running.line() == "ready"
        await asyncio.sleep(0.3)
        running.interrupt()
        assert await running.end() == (0, "late\n\n", "")


async def test_a_handler_of_the_program_ends_a_call_as_well(place: Place) -> None:
    text = """
    def late(*_): raise TimeoutError("the program's own")
    signal.signal(signal.SIGALRM, late)
    with opened() as client:
        sandbox = client.create(image="base")
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            sandbox.run("sleep 60")
        except TimeoutError as error:
            say(error, sandbox.run("echo alive").stdout.strip())
    """
    async with program(place, text) as running:
        assert await running.end() == (0, "the program's own alive\n", "")


FORKING = """
with opened() as client, client.sandbox(image="base") as sandbox:
    child = os.fork()
    if child == 0:
        try:
            sandbox.run("echo never")
        except dsec.sync.WrongPlace as error:
            say(error)
        with opened() as own:
            say(own.attach(sandbox.id).run("echo child").stdout.strip())
    else:
        os.waitpid(child, 0)
        say(sandbox.run("echo parent").stdout.strip())
"""


@pytest.mark.parametrize("ends", ["sys.exit()", "os._exit(0)"])
async def test_a_forked_child_is_told_to_open_its_own_and_harms_nothing(place: Place, ends: str) -> None:
    text = FORKING.replace("    else:", f"        {ends}\n    else:")
    async with program(place, text) as running:
        code, out, err = await running.end()
    assert code == 0, err
    assert "Traceback" not in err, err  # asyncio remarks on the parent's tasks that end here
    told, child, parent = out.splitlines()
    assert "forked" in told
    assert (child, parent) == ("child", "parent")
    assert place.peer.done["destroy"] == 1  # by the parent alone


async def test_a_program_that_never_leaves_its_block_ends_all_the_same(place: Place) -> None:
    text = """
    client = opened().__enter__()
    sandbox = client.create(image="base")
    def wait():
        try:
            sandbox.start("sleep 60").wait()
        except dsec.DsecError:
            pass  # told so, or not any more
    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.3)
    say("end")
    """
    async with program(place, text) as running:
        assert await running.end() == (0, "end\n", "")


async def test_a_call_that_is_under_way_when_the_client_is_closed_is_told_so(place: Place) -> None:
    text = """
    def wait(running):
        try:
            running.wait()
        except dsec.DsecError as error:
            say(error.code)
    with opened() as client:
        waiting = threading.Thread(target=wait, args=(client.create(image="base").start("sleep 60"),))
        waiting.start()
        time.sleep(0.3)
    waiting.join()
    """
    async with program(place, text) as running:
        assert await running.end() == (0, "broker_down\n", "")
