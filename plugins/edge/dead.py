"""A command whose inside is gone, as the Exec of one that runs looks: only its end is still to be told.
For a node that was killed in the middle of a stop.
"""

from __future__ import annotations

import asyncio
import os

from dsec.bus.chronus.guest import Exit
from dsec.plugins.edge.leader import KILLED


class Dead:
    """See the module and `leader.Started`."""

    stdin: int | None = None

    def __init__(self, exec_: str) -> None:
        self.id = exec_
        self.stdout, self.stderr = _ended_pipe(), _ended_pipe()
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.exited.set_result(KILLED)

    async def signal(self, signum: int) -> None:
        """There is nobody."""

    async def close_stdin(self) -> None:
        """There is nobody."""

    async def kill_tree(self) -> None:
        """There is nobody."""

    def oom_killed(self) -> bool:
        """Nobody can tell any more."""
        return False

    async def release(self) -> None:
        """Repeatable."""
        self.detach()

    def detach(self) -> None:
        """Repeatable."""
        for descriptor in {self.stdout, self.stderr} - {-1}:
            os.close(descriptor)
        self.stdout = self.stderr = -1


def _ended_pipe() -> int:
    """The end of one from which nothing comes."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.close(writing)
    return reading
