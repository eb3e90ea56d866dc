"""The process side of one command: its leader's end, its timeout, and the end of its tree.

The channel to the inside may break while the sandbox lives; then the end of the leader is learned through the
next connection (`adopt`). The first connection's descriptors are the same pipes and stay in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final, Protocol

from dsec.bus.chronus.guest import Exit
from dsec.bus.errors import DsecError
from dsec.plugins.edge.tasks import Tasks
from dsec.plugins.edge.trajectory import Entry

GRACE: Final = 0.1
"""Seconds that output of children may still come after the leader's end."""
SIGKILL: Final = 9
KILLED: Final = Exit(code=None, signal=SIGKILL, cpu_us=0, max_rss=0)
"""The end of a command that died with its sandbox."""


class Started(Protocol):
    """A started command: an `Exec`, or one in a session."""

    id: str
    stdout: int
    stderr: int
    stdin: int | None
    exited: asyncio.Future[Exit]

    async def signal(self, signum: int) -> None: ...

    async def close_stdin(self) -> None: ...

    async def kill_tree(self) -> None: ...

    def oom_killed(self) -> bool: ...

    async def release(self) -> None: ...

    def detach(self) -> None: ...


class Leader:
    """`changed` is called when the leader has ended or its tree was killed."""

    def __init__(self, entry: Entry, command: Started, tasks: Tasks, changed: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.command = command
        self.exited: asyncio.Future[Exit] = loop.create_future()
        self.timed_out = False
        self.killed = False
        """Whether nothing of the tree lives any more."""
        self._entry = entry
        self._tasks = tasks
        self._changed = changed
        self._former: list[Started] = []
        self._ended_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._left: float | None = None
        command.exited.add_done_callback(self._told)
        if entry.timeout is not None:
            left = max(0.0, entry.started + entry.timeout - time.time())
            self._timer = loop.call_later(left, self._expire)

    @property
    def wall_ms(self) -> float:
        """From the start to the leader's end."""
        return round((self._ended_at - self._entry.started) * 1000, 3)

    @property
    def ended_for(self) -> float | None:
        """Seconds since the leader's end; None while it runs."""
        return time.time() - self._ended_at if self.exited.done() else None

    @property
    def grace(self) -> float | None:
        """Seconds that are left of the grace; None while the leader runs or when nothing lives."""
        if not self.exited.done() or self.killed:
            return None
        return max(0.0, self._ended_at + GRACE - time.time())

    def adopt(self, command: Started) -> None:
        """Go on with the same command over a new connection."""
        self._former.append(self.command)
        self.command = command
        command.exited.add_done_callback(self._told)

    def lost(self) -> None:
        """The sandbox is dead, and the leader with it. Repeatable."""
        if not self.exited.done():
            self._end(KILLED)

    async def kill(self) -> None:
        """Nothing of the tree lives afterwards. Repeatable."""
        if not self.killed:
            await self.command.kill_tree()
            self.killed = True
            self._changed()

    async def close_stdin(self) -> None:
        """End of file for the command."""
        for former in self._former:
            with contextlib.suppress(DsecError):
                await former.close_stdin()
        await self.command.close_stdin()

    async def release(self) -> None:
        """Give everything of the command back, on both sides."""
        for former in self._former:
            former.detach()
        await self.command.release()

    def hold(self) -> None:
        """The sandbox is frozen by no fault of its own: the timeout does not run on. Repeatable."""
        if self._timer is not None and self._left is None:
            self._left = max(0.0, self._timer.when() - asyncio.get_running_loop().time())
            self._timer.cancel()

    def go_on(self) -> None:
        """Undo `hold`; repeatable."""
        if self._left is not None and not self.exited.done():
            self._timer = asyncio.get_running_loop().call_later(self._left, self._expire)
        self._left = None

    def leave(self) -> None:
        """The node stops: the command goes on without it."""
        if self._timer is not None:
            self._timer.cancel()
        for one in (*self._former, self.command):
            one.detach()

    def _told(self, told: asyncio.Future[Exit]) -> None:
        """An exception is a lost channel: the end comes through `adopt` or `lost`."""
        if not told.cancelled() and told.exception() is None and not self.exited.done():
            self._end(told.result())

    def _end(self, exit_: Exit) -> None:
        self._ended_at = time.time()
        if self._timer is not None:
            self._timer.cancel()
        self.exited.set_result(exit_)
        self._changed()

    def _expire(self) -> None:
        if not self.exited.done():
            self.timed_out = True
            self._tasks.spawn(self.command.kill_tree(), f"timeout of {self._entry.exec}")
