"""A command on a terminal: what it prints comes through a pipe of its own, like that of any other.

The terminal is the sandbox's; the node holds its master. What is to be read there is moved into the command's
output pipe by splice(2), in one step, so that a node that is killed loses nothing and doubles nothing: the
agent inside keeps both. When nobody has the terminal open any more, the pipe is closed, and so the exec ends.
"""

from __future__ import annotations

import asyncio
import os
import select
from typing import Final

from dsec.bus.chronus.guest import Exec, Exit
from dsec.plugins.edge.tasks import Tasks

AT_ONCE: Final = 65_536


class OnTerminal:
    """An Exec with a terminal, whose master is its `stdin`."""

    def __init__(self, command: Exec, tasks: Tasks) -> None:
        self.id = command.id
        self.stdout, self.stderr = command.stdout, command.stderr
        self.stdin: int | None = command.stdin
        self.exited: asyncio.Future[Exit] = command.exited
        self._command = command
        self._pipe = -1
        self._ready = asyncio.Event()
        if command.stdin is not None:
            self._pipe = os.open(
                f"/proc/self/fd/{command.stdout}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
            tasks.spawn(self._pump(command.stdin), f"terminal of {command.id}")

    async def signal(self, signum: int) -> None:
        """See Exec."""
        await self._command.signal(signum)

    async def close_stdin(self) -> None:
        """Hang up."""
        self._stop()
        await self._command.close_stdin()

    async def kill_tree(self) -> None:
        """See Exec."""
        await self._command.kill_tree()

    def oom_killed(self) -> bool:
        """See Exec."""
        return self._command.oom_killed()

    async def release(self) -> None:
        """See Exec."""
        self._stop()
        await self._command.release()

    def detach(self) -> None:
        """See Exec."""
        self._stop()
        self._command.detach()

    async def _pump(self, master: int) -> None:
        """Until nobody has the terminal open, or `_stop`."""
        loop = asyncio.get_running_loop()
        while self._pipe >= 0:
            moved = self._move(master)
            if moved == 0:
                self._stop()
            elif moved is None:
                await self._more(loop, master)

    def _move(self, master: int) -> int | None:
        """Bytes that were moved; 0 when no more will come, None when none are there or the pipe is full."""
        try:
            return os.splice(master, self._pipe, AT_ONCE, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            return None
        except OSError:  # EIO: nobody has it open
            return 0

    async def _more(self, loop: asyncio.AbstractEventLoop, master: int) -> None:
        """Until one of the two, whichever it was, is ready again."""
        full, pipe = not _writable(self._pipe), self._pipe
        self._ready.clear()
        if full:
            loop.add_writer(pipe, self._ready.set)
        else:
            loop.add_reader(master, self._ready.set)
        try:
            await self._ready.wait()
        finally:
            if self._pipe >= 0:
                (loop.remove_writer if full else loop.remove_reader)(pipe if full else master)

    def _stop(self) -> None:
        """What was printed by now is in the pipe, whose end this is. Repeatable."""
        if self._pipe < 0:
            return
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._pipe)
        if self.stdin is not None:
            loop.remove_reader(self.stdin)
            self._move(self.stdin)
        os.close(self._pipe)
        self._pipe = -1
        self._ready.set()


def _writable(pipe: int) -> bool:
    """Whether there is room in it."""
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    return bool(poll.poll(0))
