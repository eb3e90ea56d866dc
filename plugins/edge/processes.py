"""Which processes of a session belong to the command that it runs now.

A session's processes are in one cgroup: its shell, the command's, and those that earlier commands left in the
background. What was there when the command began, and what descends from that other than through the shell,
is not the command's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """`started`: clock ticks since the machine's boot."""

    parent: int
    started: int


def members(cgroup: Path) -> frozenset[int]:
    """The processes in `cgroup`, none when it is gone."""
    try:
        return frozenset(map(int, (cgroup / "cgroup.procs").read_bytes().split()))
    except OSError:
        return frozenset()


def send(signum: int, pids: Iterable[int], cgroup: Path) -> None:
    """Signal those of `pids` that are in `cgroup`, whatever ended or began under their numbers meanwhile."""
    held: dict[int, int] = {}
    try:
        for pid in pids:
            with contextlib.suppress(OSError):
                held[pid] = os.pidfd_open(pid)
        for pid in members(cgroup) & held.keys():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(held[pid], signum)
    finally:
        for descriptor in held.values():
            os.close(descriptor)


def table(pids: Collection[int]) -> dict[int, Process]:
    """What is known of `pids`, without those that have ended."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            found[pid] = Process(int(fields[1]), int(fields[19]))
    return found


def before(processes: Mapping[int, Process], moment: float) -> frozenset[int]:
    """Those that were there at `moment` (unix seconds); one of the same clock tick counts as later."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return frozenset(
        pid for pid, process in processes.items() if process.started < int((moment - booted) * _TICKS)
    )


def foreground(processes: Mapping[int, Process], old: Collection[int]) -> frozenset[int]:
    """Those of the present command, the shell not among them, where `old` were there before it."""
    shell = _shell(processes)
    return frozenset(
        pid for pid in processes if pid != shell and not _descends(pid, processes, frozenset(old), shell)
    )


def _shell(processes: Mapping[int, Process]) -> int:
    """The oldest, and of those that began within one tick the one that no other of them began."""
    roots = [pid for pid, process in processes.items() if process.parent not in processes]
    return min(roots, key=lambda pid: processes[pid].started, default=0)


def _descends(pid: int, processes: Mapping[int, Process], old: frozenset[int], shell: int) -> bool:
    """Whether it is one of `old`, or has one among its parents below the shell."""
    seen = set()
    while pid in processes and pid != shell and pid not in seen:
        if pid in old:
            return True
        seen.add(pid)
        pid = processes[pid].parent
    return False
