"""A session: a shell that stays, and the commands that it runs one after the other.

A session is an exec, and so is each of its commands (a `Turn`): same log, same credit, same quota. What a
command wrote is what its shell's two pipes hold when its status comes, since that is written last; what its
background children write afterwards belongs to the next one, as on a terminal. Status and inline output stay
in the pipes until the record is stored, so a restarted node finds both; then the next command may begin.

Whatever spoils the channels, or makes the shell stop reading them, ends the session: a command can forge its
own exit code, and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Mapping
from typing import Final

from dsec.bus.chronus.exec import SessionEnds
from dsec.bus.chronus.guest import Exec, Exit
from dsec.bus.errors import DsecError, InfraError, LimitError, SessionBusy, SessionEnded
from dsec.bus.frames import Frame, Kind, unpack_parts
from dsec.plugins.edge import dialect
from dsec.plugins.edge.dialect import Dialect
from dsec.plugins.edge.leader import SIGKILL, Leader
from dsec.plugins.edge.pipes import Pipes, Scratch
from dsec.plugins.edge.processes import before, foreground, members, send, table
from dsec.plugins.edge.syscalls import closed, waiting
from dsec.plugins.edge.tasks import Tasks
from dsec.plugins.edge.trajectory import Entry

RELENT: Final = 1.0
"""Seconds that a shell has to tell the status of a command whose processes were killed."""
STARTS: Final = 3.0
"""Seconds that a signal waits for the first process of a command that the shell has not begun yet."""
AGAIN: Final = 0.02
"""Seconds until what a signalled command's shell started meanwhile is looked for."""
CROWD: Final = 256
"""Processes of a session that are looked at one by one."""
WATCH: Final = 1.0
"""Seconds between looks whether the shell took the line behind a command: three, and it owes the status."""
_PIPE_BYTES: Final = 65_536


class Turn:
    """A command in a session, as the Exec of one that has a shell of its own looks."""

    stdin: int | None = None

    def __init__(self, shell: Shell, exec_: str, stdout: int, stderr: int) -> None:
        self.id = exec_
        self.stdout, self.stderr = stdout, stderr
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.pipes = Pipes(stdout, stderr)
        self.old: frozenset[int] = frozenset()
        self.cpu_us = self.oom_kills = 0
        self._shell = shell

    async def signal(self, signum: int) -> None:
        """To its processes, not to the shell; one that the shell is about to begin is waited for."""
        await self._shell.signal(self, signum)

    async def close_stdin(self) -> None:
        """Its input was given whole."""

    async def kill_tree(self) -> None:
        """Its processes are gone, and the shell as well when it does not come back; repeatable."""
        if self._shell.leader.exited.done():
            await self._shell.leader.command.kill_tree()
        elif not self.exited.done():
            await self._shell.interrupt(self)

    def oom_killed(self) -> bool:
        """Whether one of the session was killed meanwhile for its own limit of memory."""
        return self._shell.oom_kills() > self.oom_kills

    async def release(self) -> None:
        """Its record is stored: the next one may begin. Repeatable.

        One that was given up while it runs takes the shell with it.
        """
        if not self.exited.done():
            await self._shell.leader.command.kill_tree()
            await asyncio.shield(self.exited)
        self._shell.finish(self)

    def detach(self) -> None:
        """The pipes are the shell's."""


class Shell:
    """A session's shell; `ended` is called once, when it has ended and its last command is released."""

    stdin = None

    def __init__(
        self,
        entry: Entry,
        command: Exec,
        how: Dialect,
        tasks: Tasks,
        scratch: Scratch,
        ended: Callable[[Shell], object],
    ) -> None:
        assert command.session is not None
        self.entry = entry
        self.leader = Leader(entry, command, tasks, self._changed)
        self.turn: Turn | None = None
        self._ends: SessionEnds = command.session
        self._command = command
        self._how = how
        self._tasks = tasks
        self._scratch = scratch
        self._ended = ended
        self._released = asyncio.Event()
        self._released.set()
        self._watchdog: asyncio.TimerHandle | None = None
        self._strikes = 0
        self._complete = False

    # --- commands

    async def reserve(self, exec_: str) -> Turn:
        """The next command, when the former one is done with. Raises SessionBusy, SessionEnded."""
        while True:
            if self.leader.exited.done():
                raise session_ended(self.entry.exec, self.leader.exited.result())
            if self.turn is None:
                break
            if not self.turn.exited.done():
                raise SessionBusy(f"the session runs {self.turn.id}", field="session")
            await self._released.wait()
        return self._take(exec_)

    def _take(self, exec_: str) -> Turn:
        self.turn = Turn(self, exec_, self._command.stdout, self._command.stderr)
        self._released.clear()
        return self.turn

    def run(self, turn: Turn, text: str, stdin: bytes | None) -> None:
        """Give it to the shell. Raises SpecError, TooLarge, and then it is released; InfraError."""
        try:
            line = dialect.line(self._how, text, turn.id, stdin=stdin is not None)
            turn.old = members(self._command.cgroup.path)
            turn.cpu_us, turn.oom_kills = self._cpu_us(), self.oom_kills()
            self._give_input(stdin or b"")
            self._write(line)
        except DsecError:
            self._free(turn)
            raise
        self._listen()

    def open(self) -> None:
        """The shell's first line; harmless a second time."""
        self._write(dialect.opening(self._how))

    def complete(self) -> None:
        """Its present command, if there is one, is known: its end may be told."""
        self._complete = True
        self._changed()

    def _give_input(self, data: bytes) -> None:
        os.ftruncate(self._ends.input, 0)
        if data and os.pwrite(self._ends.input, data, 0) != len(data):
            raise InfraError("the input of a command could not be kept in memory")

    def _write(self, line: bytes) -> None:
        """Whole: the channel is empty, and as large as the line."""
        try:
            if len(line) > _PIPE_BYTES:
                fcntl.fcntl(self._ends.commands, fcntl.F_SETPIPE_SZ, len(line))
            written = os.write(self._ends.commands, line) if line else 0
        except BrokenPipeError:
            return  # it has ended, and is told as such
        except OSError as error:
            raise InfraError.during("giving a command to its session", error) from error
        if written != len(line):
            self._tasks.spawn(self._command.kill_tree(), f"end of {self.entry.exec}")

    def interrupted(self, exec_: str) -> bool:
        """Whether a former process had given it to the shell, but not said so yet; to a moment."""
        return waiting(self._ends.commands) > 0 or self._pending() == exec_

    def take_over(self, entry: Entry) -> Turn:
        """A command that a former process gave to the shell."""
        turn = self._take(entry.exec)
        processes = table(members(self._command.cgroup.path))
        turn.old = before(processes, entry.started)
        turn.cpu_us, turn.oom_kills = self._cpu_us(), self.oom_kills()
        self._listen()
        return turn

    def settle(self, exec_: str, last: Frame) -> None:
        """A command whose `last` record is stored, but which a former process may not have released."""
        if self._pending() != exec_:
            return
        turn = self._take(exec_)
        turn.pipes.cut()
        if last.kind is Kind.INLINE:
            _, out, err = unpack_parts(last.data)
            turn.pipes.out.left, turn.pipes.err.left = len(out), len(err)
        self.finish(turn)

    # --- what is asked of its present command

    async def signal(self, turn: Turn, signum: int) -> None:
        """To the processes of `turn`, if it is the present one and has some within `STARTS` seconds.

        Raises LimitError for a crowd.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + STARTS
        while not self._signalled(turn, signum) and loop.time() < until:
            await asyncio.wait((turn.exited,), timeout=AGAIN)

    def _signalled(self, turn: Turn, signum: int) -> bool:
        """Whether there was somebody to signal, or nobody will come. Raises LimitError for a crowd."""
        if self.turn is not turn or turn.exited.done():
            return True
        cgroup = self._command.cgroup.path
        present = members(cgroup)
        if len(present) > CROWD:
            raise LimitError(f"the session has more than {CROWD} processes: kill the command", field="signum")
        chosen = foreground(table(present), turn.old)
        send(signum, chosen, cgroup)
        return bool(chosen)

    async def interrupt(self, turn: Turn) -> None:
        """Its processes are killed until the shell tells its status; one that does not is killed, too, and so
        is a crowd, which nobody could tell apart in time.
        """
        turn.pipes.cut()
        for _ in range(round(RELENT / AGAIN)):
            if len(members(self._command.cgroup.path)) > CROWD:
                break
            self._signalled(turn, SIGKILL)
            await asyncio.wait((turn.exited,), timeout=AGAIN)
            if turn.exited.done():
                return
        await self.leader.command.kill_tree()

    def finish(self, turn: Turn) -> None:
        """What was kept for the record of `turn` goes; repeatable."""
        if self.turn is not turn:
            return
        turn.pipes.clear()
        if self._pending() == turn.id:
            os.read(self._ends.statuses, dialect.STATUS_BYTES)
        self._free(turn)

    def _free(self, turn: Turn) -> None:
        if self.turn is turn:
            self.turn = None
            self._released.set()
            if self.leader.exited.done():
                self._changed()

    # --- the status

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._ends.statuses, self._status)
        self._strikes = 0
        if self._how.reads_on:
            self._watchdog = loop.call_later(WATCH, self._watch)

    def _deaf(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if self._command.session is not None:  # not left or released
            asyncio.get_running_loop().remove_reader(self._ends.statuses)

    def _status(self) -> None:
        self._deaf()
        turn = self.turn
        if turn is None or turn.exited.done() or (raw := self._peek()) == b"":
            return  # nobody can write it any more: the leader's end tells the rest
        told = dialect.status(raw)
        if told is None or told[0] != turn.id:
            self._tasks.spawn(self.leader.command.kill_tree(), f"end of {self.entry.exec}: a forged status")
            return
        turn.pipes.cut()
        turn.exited.set_result(Exit(told[1], None, max(0, self._cpu_us() - turn.cpu_us), 0))

    def _peek(self) -> bytes:
        held = min(waiting(self._ends.statuses), dialect.STATUS_BYTES)
        return self._scratch.peek(self._ends.statuses, held)

    def _pending(self) -> str:
        """The exec whose status is in the channel, or ""."""
        told = dialect.status(self._peek())
        return told[0] if told else ""

    def _watch(self) -> None:
        """A shell that has taken the line behind a command owes its status."""
        stuck = waiting(self._ends.commands) == 0 and not closed(self._ends.statuses)
        self._strikes = self._strikes + 1 if stuck else 0
        if self._strikes < 3:
            self._watchdog = asyncio.get_running_loop().call_later(WATCH, self._watch)
        else:
            self._tasks.spawn(self.leader.command.kill_tree(), f"end of {self.entry.exec}: it is stuck")

    def oom_kills(self) -> int:
        """How many of its processes were killed for the session's own limit of memory."""
        return self._command.cgroup.oom_kills() if "memory" in self.entry.limits else 0

    def _cpu_us(self) -> int:
        """Processor time of all its processes, in microseconds."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((self._command.cgroup.path / "cpu.stat").read_bytes().split(None, 2)[1])
        return 0

    # --- the end

    def _changed(self) -> None:
        """The shell has ended: so does its command, unless that was told before; then the session."""
        if not self._complete or not self.leader.exited.done():
            return
        turn = self.turn
        if turn is None:
            self._end()
        elif not turn.exited.done():
            self._status()
            if not turn.exited.done():
                turn.exited.set_result(self.leader.exited.result())

    def _end(self) -> None:
        ended, self._ended = self._ended, lambda _: None
        ended(self)

    def grant(self, offset: int, lease: float) -> None:
        """It has no output of its own."""

    def abandon(self) -> None:
        """The sandbox is dead. Repeatable."""
        self._deaf()
        self.leader.lost()

    def forsake(self) -> None:
        """The sandbox was declared failed elsewhere."""
        self._deaf()
        self.leader.leave()

    def leave(self) -> None:
        """The node stops: the shell and its command go on. Repeatable."""
        self._deaf()
        self.leader.leave()


def session_ended(session: str, exit_: Exit) -> SessionEnded:
    """The error that tells how."""
    how = f"with exit code {exit_.code}" if exit_.signal is None else f"of {_name(exit_.signal)}"
    error = SessionEnded(f"session {session} has ended {how}: open another", field="session")
    error.exit_code, error.signal = exit_.code, exit_.signal
    return error


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def ended_sessions(entries: Mapping[str, Entry]) -> dict[str, Exit]:
    """How the sessions ended of which a former process told the end."""
    return {
        entry.exec: Exit(entry.ended.get("code"), entry.ended.get("signal"), 0, 0)
        for entry in entries.values()
        if entry.shell and entry.ended
    }
