"""One command from its fork to its stored last record.

A short one (at most `INLINE_BYTES`, ended within ~50 ms) is answered by one frame that has everything; its
output stays in the pipes until that record is stored. A longer one is answered by its first output; the rest
goes pipe -> spool (tmpfs) -> log, as credit and the node's window allow. An exec ends when its leader ends,
after `GRACE` for output that is still on its way, whatever its children hold open; then its tree is killed.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson

from dsec.bus.appender import Stored
from dsec.bus.chronus.guest import Exec, Exit
from dsec.bus.errors import BrokerDown, DiskFull, DsecError
from dsec.bus.frames import INLINE_BYTES, Frame, Kind
from dsec.bus.messages import Ended
from dsec.plugins.edge.budget import Credit, publishable, share, take
from dsec.plugins.edge.execlog import ExecLog
from dsec.plugins.edge.pipes import Pipe, Pipes, Scratch
from dsec.plugins.edge.spool import Spool, remove
from dsec.plugins.edge.stdin import Stdin
from dsec.plugins.edge.tasks import Tasks
from dsec.plugins.edge.trajectory import Entry, Trajectory

LOOKS: Final = (0.005, 0.010, 0.035)
"""Seconds between looks at a command that may end soon; a full pipe is seen at the first."""
GRACE: Final = 0.1
LEASE: Final = 10.0
"""Seconds a reader has, after a start or a restart of the node, until its first grant."""
DROP_PAUSE: Final = 0.002
"""Seconds between emptying the pipe of a command past its quota: it may run on, but not at full speed."""
SIGKILL: Final = 9


@dataclass(frozen=True, slots=True)
class Desk:
    """What all commands of one sandbox share."""

    tasks: Tasks
    scratch: Scratch
    trajectory: Trajectory


@dataclass(slots=True)
class Running:
    """See the module. `base` is the path of the spool without its suffix."""

    entry: Entry
    command: Exec
    log: ExecLog
    base: Path
    desk: Desk
    oom_killed: Callable[[], Awaitable[bool]]
    """Whether the kernel killed a process of the sandbox for memory since the last question."""
    credit: Credit = field(default_factory=Credit)
    stdin: Stdin | None = field(init=False)
    pipes: Pipes = field(init=False)
    quota: int = field(init=False)
    _spool: Spool | None = None
    _timed_out: bool = False
    _killed: bool = False
    _told_truncated: bool = False
    _dropping: bool = False
    _exited_at: float = 0.0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _timer: asyncio.TimerHandle | None = None
    _stream: asyncio.Task[None] | None = None
    _when_released: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pipes = Pipes(self.command.stdout, self.command.stderr)
        self.quota = self.entry.quota
        pipe = self.command.stdin
        self.stdin = None if pipe is None else Stdin(pipe, self.command.close_stdin, self.base)
        if self.command.exited.done():
            self._exited_at = time.time()
        self.command.exited.add_done_callback(self._exited)
        if self.entry.timeout is not None:
            left = max(0.0, self.entry.started + self.entry.timeout - time.time())
            self._timer = asyncio.get_running_loop().call_later(left, self._expire)

    # --- the start

    async def begin(self) -> tuple[bytes, Stored]:
        """The answer to exec.start, and the future of its record. Raises DiskFull."""
        if not self.entry.detach and await self._ends_soon():
            return await self._inline()
        return self._started()

    async def _ends_soon(self) -> bool:
        """Whether the command ended while its output still fits one answer."""
        exited = self.command.exited
        for pause in LOOKS:
            if not exited.done():
                await asyncio.wait((exited,), timeout=pause)
            if sum(self.pipes.sizes()) > INLINE_BYTES:
                return False
            if exited.done():
                await self._settle()
                return sum(self.pipes.sizes()) <= INLINE_BYTES
        return False

    async def _settle(self) -> None:
        """The leader has ended: the grace for its children's output, then nothing of the tree lives."""
        until = self._exited_at + GRACE
        while not self.pipes.shut() and sum(self.pipes.sizes()) <= INLINE_BYTES:
            await asyncio.sleep(0.005)
            if time.time() >= until:
                break
        await self._kill()

    async def _inline(self) -> tuple[bytes, Stored]:
        out, err, cut = share(*self.pipes.sizes(), self.quota)
        end = await self._end(out + err, truncated=cut)
        peek = self.desk.scratch.peek
        answer, stored = self.log.inline(
            end, peek(self.pipes.out.descriptor, out), peek(self.pipes.err.descriptor, err)
        )
        self._release_when(stored, end)
        return answer, stored

    def _started(self) -> tuple[bytes, Stored]:
        self._spool = spool = Spool(self.base)
        room = share(*self.pipes.sizes(), min(self.quota, INLINE_BYTES))
        out = spool.take(Kind.STDOUT, self.pipes.out.descriptor, room[0]) if room[0] else 0
        err = spool.take(Kind.STDERR, self.pipes.err.descriptor, room[1]) if room[1] else 0
        first = spool.frame(0, out)[1] if out else b""
        second = spool.frame(out, err)[1] if err else b""
        answer, stored = self.log.started(self.meta(), first, second)
        if not self.entry.detach:
            self.grant(self.log.offset, LEASE)
        self._stream_on(spool)
        return answer, stored

    def meta(self) -> bytes:
        """Metadata of the STARTED frame."""
        return orjson.dumps({"exec": self.entry.exec, "started": int(self.entry.started * 1000)})

    def resume(self, last: Frame | None) -> bool:
        """Go on where a former process stopped, `last` being the last stored record. False: begin anew."""
        if last is not None and last.kind in {Kind.EXIT, Kind.INLINE}:
            self.desk.tasks.spawn(self._release(b""), f"release of {self.entry.exec}")
            return True
        if last is None and not Spool.exists(self.base):
            return False
        if last is not None:
            self.log.after(last)
            self._told_truncated = last.kind is Kind.TRUNCATED
        if not self.entry.detach:
            self.grant(self.log.offset, LEASE)
        self._stream_on(Spool(self.base))
        return True

    # --- what a reader or caller asks meanwhile

    def grant(self, offset: int, lease: float) -> None:
        """The reader takes output up to `offset`."""
        self.credit.grant(offset, lease, time.monotonic())
        self._wake.set()

    def when_released(self, tell: Callable[[], object]) -> None:
        """Have `tell` called once nothing of the exec is needed any more."""
        self._when_released.append(tell)

    def abandon(self) -> None:
        """The sandbox goes: wait for no reader any more. Repeatable."""
        self.credit.detach()
        self._wake.set()

    # --- the stream

    def _stream_on(self, spool: Spool) -> None:
        self._spool = spool
        self._stream = self.desk.tasks.spawn(self._run(spool), f"stream of {self.entry.exec}")

    async def _run(self, spool: Spool) -> None:
        try:
            while True:
                self._wake.clear()
                self._take(spool)
                await self._kill_after_grace()
                size = publishable(
                    published=self.log.offset, taken=spool.taken, limit=self.credit.limit(time.monotonic())
                )
                if size:
                    stored = await self.log.output(*spool.frame(self.log.offset, size))
                    stored.add_done_callback(functools.partial(_forget, spool, self.log.offset))
                elif self.log.offset < spool.taken or not self._complete():
                    await self._changed()
                else:
                    break
            await self._kill()
            end = await self._end(spool.taken, truncated=spool.truncated)
            self._release_when(self.log.exit(end), end)
        finally:
            spool.close()

    def _take(self, spool: Spool) -> None:
        self._dropping = False
        for pipe in self.pipes.in_turn():
            waiting = pipe.waiting(abandoned=self._killed)
            what = take(
                waiting,
                taken=spool.taken,
                published=self.log.offset,
                quota=self.quota,
                limit=self.credit.limit(time.monotonic()),
            )
            if what.truncated:
                spool.truncate()
                pipe.drop()
                self._dropping = True
            elif what.bytes:
                self._spool_some(spool, pipe.kind, pipe.descriptor, what.bytes)

    def _spool_some(self, spool: Spool, kind: Kind, descriptor: int, length: int) -> None:
        try:
            spool.take(kind, descriptor, length)
        except DiskFull:
            self.quota = spool.taken  # what there is no memory for is past the budget

    def _complete(self) -> bool:
        """Everything taken is published; tell a truncation once. Whether the exec is over, too."""
        spool = self._spool
        if spool is not None and spool.truncated and not self._told_truncated:
            self.log.truncated()
            self._told_truncated = True
        return self.pipes.ended and self.command.exited.done()

    async def _changed(self) -> None:
        """Until there is something to do: output, credit, the exit, or the end of a lease or the grace."""
        if self._dropping:
            await asyncio.sleep(DROP_PAUSE)
            return
        loop = asyncio.get_running_loop()
        watched = [pipe.descriptor for pipe in self._wanted()]
        for descriptor in watched:
            loop.add_reader(descriptor, self._wake.set)
        try:
            async with asyncio.timeout(self._patience()):
                await self._wake.wait()
        except TimeoutError:
            pass
        finally:
            for descriptor in watched:
                loop.remove_reader(descriptor)

    def _wanted(self) -> list[Pipe]:
        """The pipes from which more would be taken now."""
        spool = self._spool
        assert spool is not None
        limit = self.credit.limit(time.monotonic())
        what = take(1, taken=spool.taken, published=self.log.offset, quota=self.quota, limit=limit)
        if not (what.bytes or what.truncated):
            return []
        return [pipe for pipe in (self.pipes.out, self.pipes.err) if not pipe.ended]

    def _patience(self) -> float | None:
        waits = []
        now = time.monotonic()
        if now < self.credit.until:
            waits.append(self.credit.until - now)
        if self.command.exited.done() and not self._killed:
            waits.append(max(0.001, self._exited_at + GRACE - time.time()))
        return min(waits, default=None)

    # --- the end

    def _exited(self, _: asyncio.Future[Exit]) -> None:
        self._exited_at = self._exited_at or time.time()
        if self._timer is not None:
            self._timer.cancel()
        self._wake.set()

    def _expire(self) -> None:
        if not self.command.exited.done():
            self._timed_out = True
            self.desk.tasks.spawn(self.command.kill_tree(), f"timeout of {self.entry.exec}")

    async def _kill_after_grace(self) -> None:
        if self.command.exited.done() and time.time() >= self._exited_at + GRACE:
            await self._kill()

    async def _kill(self) -> None:
        if not self._killed:
            await self.command.kill_tree()
            self._killed = True
            self._wake.set()

    async def _end(self, output: int, *, truncated: bool) -> bytes:
        exit_ = _exit_of(self.command.exited)
        ended = Ended.EXIT if exit_.signal is None else Ended.SIGNAL
        if self._timed_out:
            ended = Ended.TIMEOUT
        elif SIGKILL in {exit_.signal, (exit_.code or 0) - 128} and await self.oom_killed():
            ended = Ended.OOM
        return orjson.dumps(
            {
                "ended": ended,
                "code": exit_.code if ended is Ended.EXIT else None,
                "signal": exit_.signal,
                "wall_ms": round((self._exited_at - self.entry.started) * 1000, 3),
                "cpu_ms": exit_.cpu_us / 1000,
                "max_rss": exit_.max_rss,
                "truncated": truncated,
                "output_bytes": output,
            }
        )

    def _release_when(self, stored: Stored, end: bytes) -> None:
        stored.add_done_callback(lambda done: self._stored(done, end))

    def _stored(self, stored: Stored, end: bytes) -> None:
        if stored.cancelled() or isinstance(stored.exception(), BrokerDown):
            return  # the node stops: the next one finds everything as it is and stores it
        self.desk.tasks.spawn(self._release(end), f"release of {self.entry.exec}")

    async def _release(self, end: bytes) -> None:
        """The record is stored: nothing of the exec is needed any more."""
        try:
            await self.command.release()
        finally:
            if end:
                self.desk.trajectory.end(self.entry.exec, end)
            remove(self.base)
            for tell in self._when_released:
                tell()


def _forget(spool: Spool, offset: int, stored: Stored) -> None:
    if not stored.cancelled() and stored.exception() is None:
        spool.forget(offset)


def _exit_of(exited: asyncio.Future[Exit]) -> Exit:
    """How the leader ended; one that died with its sandbox was killed."""
    try:
        return exited.result()
    except DsecError:
        return Exit(code=None, signal=SIGKILL, cpu_us=0, max_rss=0)
