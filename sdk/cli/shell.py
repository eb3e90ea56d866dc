"""`dsec shell`: a shell in a sandbox on this terminal. Ctrl-] leaves it running, `--attach` finds it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from dsec.bus.errors import DsecError, GoneError, NoSuchProgram, SpecError
from dsec.sdk import Client, Exec, Result, Sandbox
from dsec.sdk.cli import options
from dsec.sdk.cli.following import PLATFORM_FAILED, exit_code

LEAVE: Final = b"\x1d"
"""Ctrl-], as telnet has it."""
SHELLS: Final = (["bash"], ["sh"])
KEYS_AT_ONCE: Final = 64 * 1024
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_IN: Final = 0


def register(subparsers: Any) -> None:
    """Add the command `shell`."""
    parser = subparsers.add_parser("shell", help="a shell in a sandbox on this terminal", description=__doc__)
    options.client_options(parser)
    parser.add_argument("sandbox", help="sandbox id")
    parser.add_argument("--attach", metavar="EXEC", help="go on with one that was left running")
    parser.add_argument("--cwd", help="working directory inside")
    parser.add_argument("--user", help="user name or uid[:gid] inside")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    parser.add_argument("command", nargs="*", help="program and arguments (default: bash, or else sh)")
    parser.set_defaults(handler=shell, error_code=PLATFORM_FAILED)


async def shell(args: argparse.Namespace) -> int:
    """The shell's exit code; 0 when it was left running."""
    if not os.isatty(_IN):
        raise SpecError("standard input is no terminal: use `dsec exec -i`", field="stdin")
    async with options.client_of(args) as client:
        running = await _opened(client, args)
        async with running, _ended_by_signals():
            with raw():
                result = await _conversation(running)
    if result is not None:
        return exit_code(result)
    sys.stderr.write(f"\nleft running: dsec shell {args.sandbox} --attach {running.id}\n")
    return 0


async def _opened(client: Client, args: argparse.Namespace) -> Exec:
    sandbox = await client.attach(args.sandbox)
    if args.attach:
        running = client.exec(sandbox.id, args.attach)
        with contextlib.suppress(GoneError):  # it has ended: its output and end are in the log
            await running.resize(*_size())
        return running
    *others, last = [args.command] if args.command else SHELLS
    for command in others:
        with contextlib.suppress(NoSuchProgram):
            return await _started(sandbox, command, args)
    return await _started(sandbox, last, args)


async def _started(sandbox: Sandbox, command: list[str], args: argparse.Namespace) -> Exec:
    wanted = {"cwd": args.cwd, "user": args.user, "env": options.pairs(args.env, "env")}
    environment = {"TERM": os.environ.get("TERM", ""), **wanted.pop("env")}
    return await sandbox.start(
        command, terminal=_size(), env={name: value for name, value in environment.items() if value}, **wanted
    )


def _size() -> tuple[int, int]:
    """Rows and columns of this terminal; one that tells none is taken for the usual one."""
    rows, columns = termios.tcgetwinsize(_IN)
    return rows or 24, columns or 80


@contextlib.contextmanager
def raw() -> Iterator[None]:
    """Keys come as they are typed, whatever they are; the terminal is as before afterwards."""
    before = termios.tcgetattr(_IN)
    try:
        tty.setraw(_IN, termios.TCSADRAIN)  # what was typed already is for the shell
        yield
    finally:
        termios.tcsetattr(_IN, termios.TCSADRAIN, before)


@contextlib.asynccontextmanager
async def _ended_by_signals() -> AsyncIterator[None]:
    """Signals that would end this process cancel the block, so that it can put the terminal right."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in ENDING:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)


async def _conversation(running: Exec) -> Result | None:
    """Until the shell has ended, or was left: None."""
    showing, typing = asyncio.create_task(_show(running)), asyncio.create_task(_type(running))
    sizing = asyncio.create_task(_follow_size(running))
    tasks: tuple[asyncio.Task[Any], ...] = (showing, typing, sizing)
    try:
        await asyncio.wait((showing, typing), return_when=asyncio.FIRST_COMPLETED)
        if typing.done() and not showing.done() and typing.result():
            return None
        return await showing
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _show(running: Exec) -> Result:
    async for _, data in running.stream():
        await asyncio.to_thread(_write, data)
    return await running.wait()


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def _type(running: Exec) -> bool:
    """Send what is typed; True when the shell is left, False when it does not listen any more."""
    async for keys in _keys():
        before, left, _ = keys.partition(LEAVE)
        try:
            if before:
                await running.write_stdin(before)
        except GoneError:
            return False
        if left:
            return True
    return True


async def _keys() -> AsyncIterator[bytes]:
    """What is typed, all that is there at once; until the terminal is gone."""
    loop, typed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(_IN, typed.set)
    try:
        while True:
            await typed.wait()
            typed.clear()
            if not select.select([_IN], [], [], 0)[0]:  # told twice; the terminal's own mode is left as it is
                continue
            try:
                keys = os.read(_IN, KEYS_AT_ONCE)
            except OSError:
                return
            if not keys:
                return
            yield keys
    finally:
        loop.remove_reader(_IN)


async def _follow_size(running: Exec) -> None:
    """Tell the shell each new size of this terminal."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            with contextlib.suppress(DsecError):  # the next one may come through
                await running.resize(*_size())
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
