"""Descriptors of the node: a command holds some, and what is left is for everybody.

A node without any cannot create, destroy or answer. So one sandbox runs only so many commands at once,
whatever its limit of processes, and a reserve is never given to commands.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Final

from dsec.bus.errors import LimitError, Overloaded

OF_A_COMMAND: Final = 6
"""Two pipes, standard input, two files of the spool, its cgroup while it starts."""
RESERVE: Final = 2000
PARTS: Final = 4
"""Sandboxes that together can use all that commands may have."""
MOST: Final = 1024
RETRY_AFTER: Final = 0.5


def room_for_command(commands: int) -> None:
    """Whether a sandbox with so many commands may start another. Raises LimitError, Overloaded."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    reserve = min(RESERVE, limit // 4)
    most = per_sandbox(limit, reserve)
    if commands >= most:
        raise LimitError(f"the sandbox runs {most} commands: wait for some to end", field="limits.nofile")
    if lowest_free() >= limit - reserve:
        raise Overloaded("the node's commands hold all its descriptors", retry_after=RETRY_AFTER)


def per_sandbox(limit: int, reserve: int) -> int:
    """Commands of one sandbox at once where a process may have `limit` descriptors."""
    return max(1, min(MOST, (limit - reserve) // OF_A_COMMAND // PARTS))


def lowest_free() -> int:
    """The lowest free descriptor: all below it are in use, as the kernel gives the lowest one first."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # EMFILE, ENFILE
        return sys.maxsize
    os.close(descriptor)
    return descriptor


def raise_limit() -> None:
    """As many as this process may give itself: the usual 1,024 are for programs that call select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
