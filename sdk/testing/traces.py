"""What a sandbox leaves on its machine: mounts, cgroups, processes, network namespaces, files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def of(sandbox: str, home: Path) -> list[str]:
    """Everything on this machine that still names `sandbox`, one line each; empty when nothing is left."""
    return sorted({*_mounts(sandbox), *_cgroups(sandbox), *_processes(sandbox), *_files(sandbox, home)})


def mounts_under(home: Path) -> set[str]:
    """Mount points below `home`, layers included."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {point for line in lines if (point := line.split()[4]).startswith(f"{home}/")}


def network_namespaces() -> set[int]:
    """Inode of each network namespace that some process is in."""
    return {
        inode
        for entry in os.scandir("/proc")
        if entry.name.isdigit()
        if (inode := _netns(entry.path)) is not None
    }


def _netns(process: str) -> int | None:
    try:
        return Path(process, "ns/net").stat().st_ino
    except OSError:
        return None


def _mounts(sandbox: str) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if sandbox in line:
            yield f"mount {line.split()[4]}"


def _cgroups(sandbox: str) -> Iterator[str]:
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        yield from (f"cgroup {directory}/{name}" for name in names if sandbox in name)


def _processes(sandbox: str) -> Iterator[str]:
    """Zombies do not count: after a kill of the node's process they are for the machine's init to reap."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            told = Path(entry.path, "cgroup").read_text() + Path(entry.path, "cmdline").read_text()
            zombie = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if sandbox in told and not zombie and int(entry.name) != os.getpid():
            yield f"process {entry.name}"


def _files(sandbox: str, home: Path) -> Iterator[str]:
    for top in (home, Path("/dev/shm"), Path("/run")):
        for directory, names, files in os.walk(top):
            yield from (f"file {directory}/{name}" for name in [*names, *files] if sandbox in name)
