"""What a sandbox leaves on its machine: mounts, cgroups, processes, network namespaces, files."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")


def of(home: Path, *sandboxes: str) -> list[str]:
    """Everything on this machine that still names one of `sandboxes`, a line each; empty when all is gone.

    One walk over the machine, however many there are.
    """
    if not sandboxes:
        return []
    names = re.compile("|".join(map(re.escape, sandboxes)))
    groups = (f"cgroup {path}" for path in _cgroups(names))
    return sorted({*_mounts(names), *groups, *_processes(names), *_files(names, home)})


def mounts_under(home: Path) -> set[str]:
    """Mount points below `home`, layers included."""
    lines = MOUNTS.read_text().splitlines()
    return {point for line in lines if (point := line.split()[4]).startswith(f"{home}/")}


@contextlib.contextmanager
def network_of(*sandboxes: str) -> Iterator[Callable[[], set[int]]]:
    """Tells which of the network namespaces that `sandboxes` have now some process is still in, by inode.

    They stay open while the block runs: the kernel gives the number of one that is gone to the next at once.
    """
    names = re.compile("|".join(map(re.escape, sandboxes)))
    with contextlib.ExitStack() as stack:
        inodes = set[int]()
        for entry in _entries():
            with contextlib.suppress(OSError):
                if _names(names, entry) and _netns(entry) != _netns(Path("/proc/self")):
                    inodes.add(os.fstat(stack.enter_context((entry / "ns/net").open("rb")).fileno()).st_ino)
        yield lambda: inodes & {_netns(entry) for entry in _entries()}


def _netns(process: Path) -> int:
    """Zero when it is gone."""
    try:
        return (process / "ns/net").stat().st_ino
    except OSError:
        return 0


def _entries() -> Iterator[Path]:
    return (Path(entry.path) for entry in os.scandir("/proc") if entry.name.isdigit())


def _mounts(names: re.Pattern[str]) -> Iterator[str]:
    for line in MOUNTS.read_text().splitlines():
        if names.search(line):
            yield f"mount {line.split()[4]}"


def cgroups(name: str) -> list[str]:
    """Control groups whose path below the hierarchies' roots has `name`."""
    return sorted(_cgroups(re.compile(re.escape(name))))


def _cgroups(names: re.Pattern[str]) -> Iterator[str]:
    for directory, below, _ in os.walk("/sys/fs/cgroup"):
        yield from (path for name in below if names.search(path := f"{directory}/{name}"))


def _processes(names: re.Pattern[str]) -> Iterator[str]:
    """Zombies do not count: after a kill of the node's process they are for the machine's init to reap."""
    for entry in _entries():
        try:
            told = _names(names, entry)
            zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if told and not zombie and entry.name != str(os.getpid()):
            yield f"process {entry.name}"


def _names(names: re.Pattern[str], process: Path) -> bool:
    """Whether its cgroup or its command line has one of `names`. Raises OSError when it is gone."""
    told = (process / "cgroup").read_text() + (process / "cmdline").read_text()
    return names.search(told) is not None


def _files(names: re.Pattern[str], home: Path) -> Iterator[str]:
    for top in (home, Path("/dev/shm"), Path("/run")):
        for directory, entries in walk(top):
            yield from (f"file {directory}/{name}" for name in entries if names.search(name))


def walk(top: Path) -> Iterator[tuple[str, list[str]]]:
    """Each directory with its entries; not what is mounted below `top`: layers have thousands of files."""
    mounted = mounts_under(top)
    for directory, below, files in os.walk(top):
        yield directory, [*below, *files]
        below[:] = [name for name in below if f"{directory}/{name}" not in mounted]


def paths(top: Path) -> Iterator[str]:
    """Every path below `top`, whatever is removed meanwhile; not what is mounted there."""
    return (f"{directory}/{name}" for directory, entries in walk(top) for name in entries)
