"""Children that come to us because their parent ended first: a sandbox's PID 1, once the engine has gone.

An ended process stays a zombie until its parent has waited for it, and not every machine's init does (the
first process of an outer container seldom does). So the node is the subreaper of what it starts, and waits
for what it knows by its cgroup; other children are none of its business.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final

PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def adopt() -> None:
    """From now on orphans among our descendants become our children (prctl(2)). Repeatable."""
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(cgroup: str) -> int:
    """Wait for our ended children whose last cgroup was `cgroup` or below; how many there were."""
    return sum(_reaped(int(pid), f"/{cgroup}/") for pid in _children())


def _children() -> list[str]:
    with contextlib.suppress(FileNotFoundError):  # a kernel without CONFIG_PROC_CHILDREN keeps its zombies
        return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return []


def _reaped(pid: int, cgroup: str) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ChildProcessError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z" and cgroup in Path(f"/proc/{pid}/cgroup").read_text():
            return os.waitpid(pid, os.WNOHANG)[0] == pid
    return False
