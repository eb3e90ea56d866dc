"""One program in one box: its standard streams, its limits, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from dsec.bus.caller import CallLimits
from dsec.bus.errors import InfraError
from dsec.plugins.fncall.boxes import Box, BoxEnded
from dsec.plugins.fncall.channel import close_all
from dsec.plugins.fncall.groups import Usage

CHUNK: Final = 65_536
Why = Literal["", "wall", "cpu", "output", "oom"]
Begin = Callable[[list[int]], None]
"""Starts the program, given its standard streams."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`why` names the limit that ended it; `status` is that of wait(2)."""

    status: int
    why: Why
    stdout: bytes
    stderr: bytes
    truncated: bool
    wall_ms: float
    usage: Usage

    @property
    def code(self) -> int | None:
        return None if os.WIFSIGNALED(self.status) else os.WEXITSTATUS(self.status)

    @property
    def signal(self) -> int | None:
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None


class Output:
    """What is written to a pipe, up to `limit` bytes; `over` is called once when there is more."""

    def __init__(self, limit: int, over: Callable[[], None]) -> None:
        self.content = bytearray()
        self.truncated = False
        self._limit = limit
        self._over = over
        self._read, self.write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self.drain)

    def drain(self) -> None:
        """Read what there is."""
        while self._read >= 0:
            try:
                data = os.read(self._read, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.close()
                return
            self.content += data
            if len(self.content) > self._limit:
                del self.content[self._limit :]
                self.truncated = True
                self.close()
                self._over()

    def begun(self) -> None:
        """The writing end is the program's now."""
        os.close(self.write)
        self.write = -1

    def close(self) -> None:
        """Repeatable."""
        if self._read >= 0:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._read = -1
        if self.write >= 0:
            self.begun()


@dataclass(slots=True)
class Watchdog:
    """Ends the box when its time, or its CPU time, is over; the CPU is looked at when it can be at the
    earliest.
    """

    box: Box
    limits: CallLimits
    why: Why = ""
    _timers: list[asyncio.TimerHandle] = field(default_factory=list)

    def end(self, why: Why) -> None:
        """The first reason counts."""
        if not self.box.ended.done():
            self.why = self.why or why
        self.box.kill()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        loop, began = asyncio.get_running_loop(), self.box.place.cpu_ms()
        self._timers.append(loop.call_later(self.limits.wall, self.end, "wall"))
        if self.limits.cpu_time is not None:
            self._look(began)
        try:
            yield
        finally:
            for timer in self._timers:
                timer.cancel()

    def _look(self, began: float) -> None:
        assert self.limits.cpu_time is not None
        left = self.limits.cpu_time - (self.box.place.cpu_ms() - began) / 1000
        if left <= 0:
            self.end("cpu")
            return
        wait = max(0.005, left / self.limits.cpu)
        self._timers[1:] = [asyncio.get_running_loop().call_later(wait, self._look, began)]


def cpu_seconds(limits: CallLimits) -> int:
    """For RLIMIT_CPU, of each process: a second line of defence; 0: none."""
    return 0 if limits.cpu_time is None else math.ceil(limits.cpu_time) + 1


async def run(
    box: Box, begin: Begin, stdin: int, limits: CallLimits, after: Callable[[], Awaitable[None]] | None = None
) -> Outcome:
    """Run to the end; everything inside has ended on return. `after` is done when the program has ended,
    while the box still is there.

    Raises what `begin` and `after` raise, NoSuchProgram, InfraError.
    """
    place, watchdog = box.place, Watchdog(box, limits)
    place.begin()
    outputs = [Output(limits.output, lambda: watchdog.end("output")) for _ in range(2)]
    began = time.perf_counter()
    try:
        with watchdog.watching():
            begin([stdin, *(one.write for one in outputs)])
            for one in outputs:
                one.begun()
            status = await _ended(box, watchdog)
        wall = (time.perf_counter() - began) * 1000
        if after is not None and not watchdog.why:
            await after()
        box.kill()
        await box.gone()
        for one in outputs:
            one.drain()
        return _outcome(status, watchdog, outputs, wall, place.usage())
    finally:
        for one in outputs:
            one.close()


async def _ended(box: Box, watchdog: Watchdog) -> int:
    """The program's status. A box that ended though nobody here ended it ran out of memory, or failed."""
    try:
        return await box.ended
    except BoxEnded:
        if not watchdog.why and not box.place.usage().oom_kills:
            raise InfraError("the box of a call ended by itself; try again") from None
        return signal.SIGKILL


def _outcome(status: int, watchdog: Watchdog, outputs: list[Output], wall: float, usage: Usage) -> Outcome:
    why, limit = watchdog.why, watchdog.limits.cpu_time
    if not why and limit is not None and usage.cpu_ms > limit * 1000:
        why = "cpu"
    if not why and any(one.truncated for one in outputs):
        why = "output"
    if not why and usage.oom_kills and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        why = "oom"
    stdout, stderr = (bytes(one.content) for one in outputs)
    return Outcome(status, why, stdout, stderr, any(one.truncated for one in outputs), wall, usage)


@contextlib.contextmanager
def opened(*descriptors: int) -> Iterator[None]:
    """They are closed after the block."""
    try:
        yield
    finally:
        close_all(descriptors)
