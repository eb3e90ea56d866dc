"""A process that is not our child: known by pid and start time, watched through a pidfd."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def started(pid: int) -> int | None:
    """Start time of `pid` in clock ticks after boot (proc(5), field 22), or None when there is no such."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = text.rpartition(")")[2].split()
    return None if after_name[0] in {"Z", "X"} else int(after_name[19])


@dataclass(slots=True)
class Watched:
    """A process under watch on the running loop; `close` ends the watch, not the process."""

    pid: int
    start: int
    _pidfd: int

    @classmethod
    def open(cls, pid: int, start: int | None, died: Callable[[], None]) -> Watched:
        """Watch `pid` if it is the one that started at `start` (None: whichever).

        `died` is called once, from the loop. Raises ProcessLookupError.
        """
        pidfd = os.pidfd_open(pid)
        found = started(pid)
        if found is None or start not in {None, found}:
            os.close(pidfd)
            raise ProcessLookupError(pid)
        watched = cls(pid, found, pidfd)
        asyncio.get_running_loop().add_reader(pidfd, watched._ready, died)
        return watched

    def _ready(self, died: Callable[[], None]) -> None:
        self.close()
        died()

    @property
    def alive(self) -> bool:
        """False once the death has been noticed."""
        return self._pidfd >= 0

    @property
    def pidfd(self) -> int:
        """Raises ProcessLookupError once the watch has ended."""
        if self._pidfd < 0:
            raise ProcessLookupError(self.pid)
        return self._pidfd

    def close(self) -> None:
        """Stop watching; repeatable."""
        if self._pidfd < 0:
            return
        with contextlib.suppress(RuntimeError):  # the loop may be closed already
            asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
