"""Requests about sessions: a shell that stays is opened, and its commands are run; see `session`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import orjson

from dsec.bus.chronus.guest import Exec, Exit
from dsec.bus.errors import BrokerDown, DeadlineExceeded, DsecError, NoSuchExec, NoSuchProgram, SpecError
from dsec.bus.frames import Frame, Kind
from dsec.bus.messages import Ended, StartExec
from dsec.bus.nats.appender import Stored
from dsec.plugins.edge import dialect
from dsec.plugins.edge.dialect import Dialect
from dsec.plugins.edge.leader import KILLED
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.running import Running
from dsec.plugins.edge.sandboxes import Sandbox
from dsec.plugins.edge.session import Shell, Turn, session_ended
from dsec.plugins.edge.spool import remove
from dsec.plugins.edge.starting import command_of, entry_of, journalled, log_of
from dsec.plugins.edge.trajectory import Entry

SHELLS: Final = ("bash", "sh")
"""What is tried when no shell is named."""
SETTLE: Final = 0.1
"""Seconds until a shell that has read a command whole has begun to run it."""
Run = Callable[[Sandbox, Entry, Turn], Running]


class Sessions:
    """Sessions of one node; `run` has a command among a sandbox's running ones."""

    def __init__(self, node: Node, run: Run) -> None:
        self._node = node
        self._run = run

    async def open(self, sandbox: Sandbox, exec_: str, request: StartExec) -> tuple[bytes, Stored]:
        """The answer to its start, and the record of it.

        Raises NoSuchProgram, LimitError, AgentCrippled, SpecError, DiskFull.
        """
        entry = entry_of(sandbox, exec_, request)
        command = await _shell(sandbox, entry, request)
        shell = self.hold(sandbox, entry, command)
        shell.open()
        shell.complete()
        return log_of(self._node, sandbox, entry).started(meta_of(entry), b"", b"")

    def hold(self, sandbox: Sandbox, entry: Entry, command: Exec) -> Shell:
        """Have the session among the sandbox's running execs until it has ended."""
        how = Dialect.of(entry.shell, sandbox.record.applied.nofile)
        desk = sandbox.desk
        shell = Shell(
            entry,
            command,
            how,
            desk.tasks,
            desk.scratch,
            lambda shell: desk.tasks.spawn(self._end(sandbox, shell), f"end of session {entry.exec}"),
        )
        sandbox.running[entry.exec] = shell
        return shell

    async def run(
        self, sandbox: Sandbox, exec_: str, request: StartExec, data: bytes | None
    ) -> tuple[bytes, Stored]:
        """The answer to a command's start, and its record.

        Raises SessionEnded, SessionBusy, NoSuchExec, SpecError, TooLarge, DiskFull.
        """
        shell = self._find(sandbox, request.session or "")
        turn = await _in_time(shell.reserve(exec_), request)
        try:
            entry = entry_of(sandbox, exec_, request)
            with journalled(sandbox, entry):
                shell.run(turn, request.argv[0], data)
                sandbox.trajectory.begin(exec_)
                return await self._run(sandbox, entry, turn).begin()
        except DsecError:
            shell.finish(turn)
            raise

    def _find(self, sandbox: Sandbox, session: str) -> Shell:
        found = sandbox.running.get(session)
        if isinstance(found, Shell):
            return found
        if session in sandbox.sessions:
            raise session_ended(session, sandbox.sessions[session])
        if session in sandbox.logs:
            raise SpecError(f"{session} is no session: open one with `shell`", field="session")
        raise NoSuchExec(f"no session {session} in this sandbox", field="session")

    async def _end(self, sandbox: Sandbox, shell: Shell) -> None:
        """Nothing of it lives; its end is told."""
        exit_ = shell.leader.exited.result()
        sandbox.sessions[shell.entry.exec] = exit_
        await shell.leader.kill()
        end = end_of(exit_, shell.leader.wall_ms)
        log = log_of(self._node, sandbox, shell.entry)
        log.sequence = 1
        stored = log.exit(end)
        stored.add_done_callback(lambda done: self._stored(sandbox, shell, end, done))

    def _stored(self, sandbox: Sandbox, shell: Shell, end: bytes, stored: Stored) -> None:
        if not stored.cancelled() and not isinstance(stored.exception(), BrokerDown):
            self._node.tasks.spawn(_release(sandbox, shell, end), f"release of {shell.entry.exec}")

    # --- a restarted node

    def killed(self, sandbox: Sandbox, entry: Entry, last: Frame | None) -> None:
        """A session that died with its inside: have its end told."""
        sandbox.sessions[entry.exec] = KILLED
        end = end_of(KILLED, 0)
        if last is None or last.kind is not Kind.EXIT:
            log = log_of(self._node, sandbox, entry)
            log.sequence = 1
            log.exit(end)
        sandbox.trajectory.end(entry.exec, end)

    async def take_over(self, sandbox: Sandbox, entry: Entry, command: Exec, last: Frame | None) -> None:
        """Go on with a session; `recover` with its command, then `settle`."""
        if last is not None and last.kind is Kind.EXIT:
            sandbox.sessions[entry.exec] = await command.exited
            await command.release()
            return
        shell = self.hold(sandbox, entry, command)
        if not any(one.session == entry.exec for one in sandbox.trajectory.entries.values()):
            shell.open()
        if last is None:
            log_of(self._node, sandbox, entry).started(meta_of(entry), b"", b"")

    def settle(self, sandbox: Sandbox) -> None:
        """All commands that sessions run are known."""
        for shell in sandbox.running.values():
            if isinstance(shell, Shell):
                shell.complete()

    async def recover(self, sandbox: Sandbox, entry: Entry, last: Frame | None) -> bool:
        """Go on with a command of a session that lives; False when its shell was never given it."""
        shell = sandbox.running.get(entry.session)
        if not isinstance(shell, Shell):
            return last is not None
        if last is not None and last.kind in {Kind.EXIT, Kind.INLINE}:
            shell.settle(entry.exec, last)
            remove(sandbox.spools / entry.exec)
            return True
        if last is None and not entry.begun and not await _given(shell, entry.exec):
            return False
        running = self._run(sandbox, entry, shell.take_over(entry))
        if not running.resume(last):
            self._node.tasks.spawn(running.begin(), f"start of {entry.exec}")
        return True


async def _shell(sandbox: Sandbox, entry: Entry, request: StartExec) -> Exec:
    """The first of the shells in question that there is."""
    *others, last = (request.shell,) if request.shell else SHELLS
    for entry.shell in others:
        with contextlib.suppress(NoSuchProgram):
            return await _started(sandbox, entry, request)
    entry.shell = last
    return await _started(sandbox, entry, request)


async def _started(sandbox: Sandbox, entry: Entry, request: StartExec) -> Exec:
    with journalled(sandbox, entry):
        wanted = command_of(sandbox, request, dialect.argv(entry.shell), session=True)
        return await sandbox.inside().start(entry.exec, wanted)


def meta_of(entry: Entry) -> bytes:
    """What the first record of a session tells."""
    return orjson.dumps({"exec": entry.exec, "started": int(entry.started * 1000), "shell": entry.shell})


def end_of(exit_: Exit, wall_ms: float) -> bytes:
    """An ExecEnd of a session, which has no output of its own."""
    return orjson.dumps(
        {
            "ended": Ended.EXIT if exit_.signal is None else Ended.SIGNAL,
            "code": exit_.code,
            "signal": exit_.signal,
            "wall_ms": wall_ms,
            "cpu_ms": exit_.cpu_us / 1000,
            "max_rss": exit_.max_rss,
            "truncated": False,
            "output_bytes": 0,
        }
    )


async def _in_time(reserving: Coroutine[Any, Any, Turn], request: StartExec) -> Turn:
    try:
        async with asyncio.timeout(request.deadline / 1000 - time.time()):
            return await reserving
    except TimeoutError:
        raise DeadlineExceeded(
            "the session's last result is not stored yet; nothing was done", field="deadline"
        ) from None


async def _given(shell: Shell, exec_: str) -> bool:
    if not shell.interrupted(exec_):
        await asyncio.sleep(SETTLE)
    return shell.interrupted(exec_)


async def _release(sandbox: Sandbox, shell: Shell, end: bytes) -> None:
    """The record of its end is stored."""
    try:
        await shell.leader.release()
    finally:
        sandbox.trajectory.end(shell.entry.exec, end)
        sandbox.running.pop(shell.entry.exec, None)
