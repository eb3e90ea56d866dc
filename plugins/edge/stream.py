"""The output of one longer command on its way: pipes -> spool -> log, until all of it is handed over."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Final

from dsec.bus.errors import DiskFull
from dsec.bus.nats.appender import Stored
from dsec.plugins.edge.budget import Credit, publishable, take
from dsec.plugins.edge.execlog import ExecLog
from dsec.plugins.edge.leader import Leader
from dsec.plugins.edge.pipes import Pipe, Pipes
from dsec.plugins.edge.spool import PAGE, Spool

CROWDED_PAUSE: Final = 0.05
CROWDED_PATIENCE: Final = 10.0
"""Seconds between two tries while tmpfs is full, and from the command's end until the rest is given up."""
SMALL: Final = 4096
GATHER: Final = 0.005
"""Seconds between a frame of fewer than `SMALL` bytes and the next: each costs the node the same."""
DROP_PAUSE: Final = 0.002
"""Seconds between emptying the pipe of a command past its quota: it may run on, but not at full speed."""


class Stream:
    """One run of it; `told_truncated`: a former process published that record."""

    def __init__(
        self, leader: Leader, pipes: Pipes, spool: Spool, log: ExecLog, quota: int, credit: Credit
    ) -> None:
        self._leader = leader
        self._pipes = pipes
        self._spool = spool
        self._log = log
        self._quota = quota
        self._credit = credit
        self._wake = asyncio.Event()
        self._dropping = False
        self._crowded = False
        self._stored = log.offset
        self.told_truncated = False

    def wake(self) -> None:
        """Something changed: credit, or the leader."""
        self._wake.set()

    async def run(self) -> None:
        """Return when the command has ended and everything up to its quota is handed to the log."""
        while True:
            self._wake.clear()
            self._take()
            if self._leader.grace == 0.0:
                await self._leader.kill()
            size = publishable(published=self._log.offset, taken=self._spool.taken, limit=self._limit())
            if size:
                stored = await self._log.output(*self._spool.frame(self._log.offset, size))
                stored.add_done_callback(functools.partial(self._forget, self._log.offset))
                if size < SMALL and not self._leader.exited.done():
                    await asyncio.sleep(GATHER)
            elif not self._complete():
                await self._changed()
            else:
                return

    def _limit(self) -> float:
        return self._credit.limit(time.monotonic())

    def _take(self) -> None:
        """Move what may be moved out of the pipes; past the quota, throw it away."""
        self._dropping = self._crowded = False
        for pipe in self._pipes.in_turn():
            waiting = pipe.waiting(abandoned=self._leader.killed)
            what = take(
                waiting,
                taken=self._spool.taken,
                published=self._log.offset,
                quota=self._quota,
                limit=self._limit(),
            )
            if what.truncated:
                self._spool.truncate()
                pipe.drop()
                self._dropping = True
            elif what.bytes:
                self._spool_some(pipe, what.bytes)

    def _spool_some(self, pipe: Pipe, length: int) -> None:
        try:
            pipe.took(self._spool.take(pipe.kind, pipe.descriptor, length))
        except DiskFull:
            self._spool.forget(self._stored, PAGE)
            self._crowded = True  # the command is held back by its pipe until there is memory again
            ended_for = self._leader.ended_for
            if ended_for is not None and ended_for > CROWDED_PATIENCE:
                self._quota = self._spool.taken

    def _complete(self) -> bool:
        """Whether all is handed over and nothing more can come; tells a truncation, once."""
        if self._log.offset < self._spool.taken:
            return False
        if self._spool.truncated and not self.told_truncated:
            self._log.truncated()
            self.told_truncated = True
        return self._pipes.ended and self._leader.exited.done()

    async def _changed(self) -> None:
        """Until there is something to do: output, credit, the leader's end, or the end of lease or grace."""
        if self._dropping or self._crowded:
            await asyncio.sleep(DROP_PAUSE if self._dropping else CROWDED_PAUSE)
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
        """The pipes from which something would be taken or dropped now."""
        what = take(
            1,
            taken=self._spool.taken,
            published=self._log.offset,
            quota=self._quota,
            limit=self._limit(),
        )
        return self._pipes.unended() if what.bytes or what.truncated else []

    def _patience(self) -> float | None:
        waits = [] if self._leader.grace is None else [max(0.001, self._leader.grace)]
        lease = self._credit.until - time.monotonic()
        if lease > 0:
            waits.append(lease)
        return min(waits, default=None)

    def _forget(self, offset: int, stored: Stored) -> None:
        """All before `offset` is in the log."""
        if not stored.cancelled() and stored.exception() is None:
            self._stored = max(self._stored, offset)
            self._spool.forget(offset)
