"""One command from its fork to its stored last record.

A short one (at most `INLINE_BYTES`, ended within ~50 ms) is answered by one frame that has everything; its
output stays in the pipes until that record is stored. A longer one is answered by its first output, and a
`Stream` brings the rest to the log. An exec ends when its leader ends, after a grace for output that is still
on its way, whatever its children hold open; then its tree is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from dsec.bus.errors import BrokerDown, DsecError
from dsec.bus.frames import INLINE_BYTES, Frame, Kind
from dsec.bus.messages import Ended
from dsec.bus.nats.appender import Stored
from dsec.plugins.edge.budget import Credit, share
from dsec.plugins.edge.execlog import ExecLog
from dsec.plugins.edge.leader import SIGKILL, Leader, Started
from dsec.plugins.edge.pipes import Pipes, Scratch
from dsec.plugins.edge.spool import Spool, remove
from dsec.plugins.edge.stdin import Stdin
from dsec.plugins.edge.stream import Stream
from dsec.plugins.edge.tasks import Tasks
from dsec.plugins.edge.trajectory import Entry, Trajectory

LOOKS: Final = (0.005, 0.010, 0.035)
"""Seconds between looks at a command that may end soon; a full pipe is seen at the first."""
LEASE: Final = 10.0
"""Seconds a reader has, after a start or a restart of the node, until its first grant."""
Killed = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Desk:
    """What all commands of one sandbox share.

    `oom_killed`: whether the kernel killed a process of it for memory since the last question.
    """

    tasks: Tasks
    scratch: Scratch
    trajectory: Trajectory
    oom_killed: Killed


class Running:
    """See the module. `base` is the path of the spool without its suffix; `released` is called at the end."""

    def __init__(
        self,
        entry: Entry,
        command: Started,
        log: ExecLog,
        base: Path,
        desk: Desk,
        released: Callable[[], object],
        pipes: Pipes | None = None,
    ) -> None:
        self.entry = entry
        self.leader = Leader(entry, command, desk.tasks, self._changed)
        self.stdin = None if command.stdin is None else Stdin(command.stdin, self.leader.close_stdin, base)
        self._pipes = pipes or Pipes(command.stdout, command.stderr)
        self._log = log
        self._base = base
        self._desk = desk
        self._released = released
        self._credit = Credit()
        self._stream: Stream | None = None
        self._streaming: asyncio.Task[None] | None = None
        self.over = False
        """Its end is being told: whoever has heard of it finds no command any more."""

    # --- the start

    async def begin(self) -> tuple[bytes, Stored]:
        """The answer to exec.start, and its record. Raises DiskFull, InfraError, and then has ended it."""
        try:
            if not self.entry.detach and await self._ends_soon():
                return await self._inline()
            return self._started()
        except DsecError:
            await self._release(b"")
            raise

    async def _ends_soon(self) -> bool:
        """Whether the command ended while its output still fits one answer."""
        exited = self.leader.exited
        for pause in LOOKS:
            if not exited.done():
                await asyncio.wait((exited,), timeout=pause)
            if sum(self._pipes.sizes()) > INLINE_BYTES:
                return False
            if exited.done():
                await self._settle()
                return sum(self._pipes.sizes()) <= INLINE_BYTES
        return False

    async def _settle(self) -> None:
        """The leader has ended: the grace for its children's output, then nothing of the tree lives."""
        while self._children_hold_on():  # noqa: ASYNC110 - a pipe tells its closing only to those who look
            await asyncio.sleep(0.005)
        await self.leader.kill()

    def _children_hold_on(self) -> bool:
        small = sum(self._pipes.sizes()) <= INLINE_BYTES
        return small and not self._pipes.shut() and bool(self.leader.grace)

    async def _inline(self) -> tuple[bytes, Stored]:
        out, err, cut = share(*self._pipes.sizes(), self.entry.quota)
        end = await self._end(out + err, truncated=cut)
        peek = self._desk.scratch.peek
        answer, stored = self._log.inline(
            end, peek(self._pipes.out.descriptor, out), peek(self._pipes.err.descriptor, err)
        )
        self._release_when(stored, end)
        return answer, stored

    def _started(self) -> tuple[bytes, Stored]:
        spool = Spool(self._base)
        out, err, _ = share(*self._pipes.sizes(), min(self.entry.quota, INLINE_BYTES))
        first = spool.bring(Kind.STDOUT, self._pipes.out.descriptor, out)
        second = spool.bring(Kind.STDERR, self._pipes.err.descriptor, err)
        self._pipes.out.took(len(first))
        self._pipes.err.took(len(second))
        meta = orjson.dumps({"exec": self.entry.exec, "started": int(self.entry.started * 1000)})
        answer, stored = self._log.started(meta, first, second)
        self._stream_on(spool)
        return answer, stored

    def resume(self, last: Frame | None) -> bool:
        """Go on where a former process stopped, `last` being the last stored record. False: begin anew."""
        if last is not None and last.kind in {Kind.EXIT, Kind.INLINE}:
            self._desk.tasks.spawn(self._release(b""), f"release of {self.entry.exec}")
            return True
        if last is None and not Spool.exists(self._base):
            return False
        if last is not None:
            self._log.after(last)
        self._stream_on(Spool(self._base), told_truncated=last is not None and last.kind is Kind.TRUNCATED)
        return True

    # --- what is asked meanwhile

    def grant(self, offset: int, lease: float) -> None:
        """The reader takes output up to `offset`."""
        self._credit.grant(offset, lease, time.monotonic())
        self._changed()

    def abandon(self) -> None:
        """The sandbox is dead: tell it without waiting for a reader. Repeatable."""
        self._credit.detach()
        self.leader.lost()
        self._changed()

    def leave(self) -> None:
        """The node stops: the command goes on without it. Repeatable."""
        self.leader.leave()

    def forsake(self) -> None:
        """The sandbox was declared failed: whatever the command did is no result, and no end is told."""
        if self._streaming is not None:
            self._streaming.cancel()
        self.leader.leave()

    def _changed(self) -> None:
        if self._stream is not None:
            self._stream.wake()

    # --- the end

    def _stream_on(self, spool: Spool, *, told_truncated: bool = False) -> None:
        if not self.entry.detach:
            self.grant(self._log.offset, LEASE)
        self._stream = Stream(self.leader, self._pipes, spool, self._log, self.entry.quota, self._credit)
        self._stream.told_truncated = told_truncated
        work = self._run(self._stream, spool)
        self._streaming = self._desk.tasks.spawn(work, f"stream of {self.entry.exec}")

    async def _run(self, stream: Stream, spool: Spool) -> None:
        with spool:
            await stream.run()
            await self.leader.kill()
            end = await self._end(spool.taken, truncated=spool.truncated)
            self._release_when(self._log.exit(end), end)

    async def _end(self, output: int, *, truncated: bool) -> bytes:
        """An ExecEnd as JSON."""
        self.over = True
        exit_ = self.leader.exited.result()
        ended = await self._how(exit_.code, exit_.signal)
        self._log.ended(ended)
        return orjson.dumps(
            {
                "ended": ended,
                "code": exit_.code if ended is Ended.EXIT else None,
                "signal": exit_.signal,
                "wall_ms": self.leader.wall_ms,
                "cpu_ms": exit_.cpu_us / 1000,
                "max_rss": exit_.max_rss,
                "truncated": truncated,
                "output_bytes": output,
                "limits": self.entry.limits,
            }
        )

    async def _how(self, code: int | None, signal: int | None) -> Ended:
        if self.leader.timed_out:
            return Ended.TIMEOUT
        if SIGKILL in {signal, (code or 0) - 128}:  # a shell tells a killed child as 128 + signal
            with contextlib.suppress(DsecError):  # the sandbox is gone: nobody can tell any more
                if await self._desk.oom_killed() or self.leader.command.oom_killed():
                    return Ended.OOM
        return Ended.EXIT if signal is None else Ended.SIGNAL

    def _release_when(self, stored: Stored, end: bytes) -> None:
        stored.add_done_callback(lambda done: self._stored(done, end))

    def _stored(self, stored: Stored, end: bytes) -> None:
        if stored.cancelled() or isinstance(stored.exception(), BrokerDown):
            return  # the node stops: the next one finds everything as it is and stores it
        self._desk.tasks.spawn(self._release(end), f"release of {self.entry.exec}")

    async def _release(self, end: bytes) -> None:
        """The record is stored: nothing of the exec is needed any more."""
        try:
            await self.leader.release()
        finally:
            if end:
                self._desk.trajectory.end(self.entry.exec, end)
            remove(self._base)
            self._released()
