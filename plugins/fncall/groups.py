"""Control groups of workers and of the places in which their calls run, on either layout of hierarchies.

    <hierarchy>/dsec/<hash of home>/<worker>/stem      the worker's own processes
    <hierarchy>/dsec/<hash of home>/<worker>/<place>   one call at a time; limits are set anew for each

A place is used again by the worker's next call, which makes calls cheap: all that a group counts is read as a
difference. Interfaces: the kernel's admin-guide, `cgroup-v1/` and `cgroup-v2.rst`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dsec.bus.errors import InfraError, MissingTool

CONTROLLERS: Final = ("memory", "pids", "cpu")
ACCOUNTING: Final = "cpuacct"
PERIOD: Final = 100_000
"""Microseconds of the CPU controller's period, the kernel's default."""
STEM: Final = "stem"
LEFT: Final = 8 << 20
"""Bytes that a place may hold when a call begins."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where hierarchies are mounted: version 1 by controller; version 2 only if it has controllers."""

    v1: dict[str, Path]
    v2: Path | None

    @property
    def roots(self) -> tuple[Path, ...]:
        """Of the hierarchies in use."""
        unified = (self.v2,) if self.v2 is not None else ()
        return (*dict.fromkeys(self.v1.values()), *unified)

    def at(self, controller: str) -> Path:
        if controller in self.v1:
            return self.v1[controller]
        assert self.v2 is not None
        return self.v2


def parse_layout(mountinfo: str) -> Layout:
    """The layout told by /proc/self/mountinfo. Raises MissingTool when there is none that will do."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        point = Path(left.split(" ")[4])
        if kind == "cgroup2" and v2 is None:
            v2 = point
        elif kind == "cgroup":
            wanted = (*CONTROLLERS, ACCOUNTING)
            v1 |= {name: point for name in options.split(",") if name in wanted and name not in v1}
    if v2 is None and set(CONTROLLERS) - set(v1):
        raise MissingTool(
            "calls need cgroups with memory, pids and cpu: mount -t cgroup2 cgroup2 /sys/fs/cgroup"
        )
    return Layout(v1, v2 if set(CONTROLLERS) - set(v1) else None)


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one call: CPU milliseconds, the most bytes of memory (None: not told here), what hit a limit."""

    cpu_ms: float
    memory: int | None
    oom_kills: int
    pids_refused: int


class Place:
    """The groups of one call at a time. `joining`: descriptors through which a process joins by writing
    "0".
    """

    def __init__(self, layout: Layout, path: str) -> None:
        self._layout = layout
        self._directories = [root / path for root in layout.roots]
        self._path = path
        self._open: dict[str, int] = {}
        self._limits: dict[str, str] = {}
        self._before = Usage(0, 0, 0, 0)
        self._base = 0
        self.joining: list[int] = []

    def make(self) -> None:
        """Raises InfraError."""
        try:
            for directory in self._directories:
                directory.mkdir(parents=True, exist_ok=True)
                name = "tasks" if (directory / "tasks").exists() else "cgroup.procs"
                self.joining.append(os.open(directory / name, os.O_WRONLY | os.O_CLOEXEC))
        except OSError as error:
            self.close()
            raise InfraError.during(f"making the cgroups {self._path}", error) from error

    def limit(self, *, memory: int, pids: int, cpu: float) -> None:
        """What the next call may use: bytes, processes and threads, cores. Raises InfraError."""
        quota = max(1000, round(cpu * PERIOD))
        self._set("pids", "pids.max", str(pids))
        if "cpu" in self._layout.v1:
            self._set("cpu", "cpu.cfs_quota_us", str(quota))
        else:
            self._set("cpu", "cpu.max", f"{quota} {PERIOD}")
        if "memory" in self._layout.v1:
            self._memory_v1(memory)
        else:
            self._set("memory", "memory.swap.max", "0")
            self._set("memory", "memory.max", str(memory))

    def _memory_v1(self, size: int) -> None:
        """Memory with swap may never be less than memory: the order depends on the direction."""
        names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        if size > int(self._limits.get(names[0], 1 << 62)):
            names.reverse()
        for name in names:
            self._set("memory", name, str(size))

    def _set(self, controller: str, name: str, value: str) -> None:
        if self._limits.get(name) == value:
            return
        file = self._layout.at(controller) / self._path / name
        if not file.exists() and ("memsw" in name or "swap" in name):
            return  # not accounted by this kernel, so there is none
        try:
            file.write_text(value, encoding="ascii")
        except OSError as error:
            raise InfraError.during(f"setting {name} of {self._path}", error) from error
        self._limits[name] = value

    def begin(self) -> None:
        """A call begins: everything is counted from here on."""
        if self._used() > LEFT:
            self._reclaim()
        with contextlib.suppress(OSError):
            os.pwrite(self._file("memory", self._peak), b"0\n", 0)
        self._before, self._base = self._counted(), self._used()

    def _used(self) -> int:
        v1 = "memory" in self._layout.v1
        return int(self._read("memory", "memory.usage_in_bytes" if v1 else "memory.current") or 0)

    def _reclaim(self) -> None:
        """Cached files that a former call was the first to read; the next one shall not pay for them."""
        v1 = "memory" in self._layout.v1
        name, value = ("memory.force_empty", "0") if v1 else ("memory.reclaim", str(self._used()))
        with contextlib.suppress(OSError):  # what is in use stays, and is told as EAGAIN or EBUSY
            (self._layout.at("memory") / self._path / name).write_text(value, encoding="ascii")

    def usage(self) -> Usage:
        """Since `begin`."""
        now, before = self._counted(), self._before
        return Usage(
            now.cpu_ms - before.cpu_ms,
            None if now.memory is None else max(0, now.memory - self._base),
            now.oom_kills - before.oom_kills,
            now.pids_refused - before.pids_refused,
        )

    @property
    def _peak(self) -> str:
        return "memory.max_usage_in_bytes" if "memory" in self._layout.v1 else "memory.peak"

    def _counted(self) -> Usage:
        v1 = "memory" in self._layout.v1
        events = self._read("memory", "memory.oom_control" if v1 else "memory.events")
        peak = self._read("memory", self._peak).strip()
        refused = self._read("pids", "pids.events")
        return Usage(
            self.cpu_ms(), int(peak) if peak else None, _number(events, "oom_kill"), _number(refused, "max")
        )

    def cpu_ms(self) -> float:
        """CPU milliseconds of all calls so far."""
        if ACCOUNTING in self._layout.v1:
            return int(self._read(ACCOUNTING, "cpuacct.usage") or 0) / 1e6
        return _number(self._read("cpu", "cpu.stat"), "usage_usec") / 1e3

    def _read(self, controller: str, name: str) -> str:
        """Empty where the kernel does not have it."""
        try:
            return os.pread(self._file(controller, name), 1024, 0).decode("ascii")
        except OSError:
            return ""

    def _file(self, controller: str, name: str) -> int:
        found = self._open.get(name)
        if found is None:
            path, writable = self._layout.at(controller) / self._path / name, name == self._peak
            mode = os.O_RDWR if writable and os.access(path, os.W_OK) else os.O_RDONLY
            found = self._open[name] = os.open(path, mode | os.O_CLOEXEC)
        return found

    def close(self) -> None:
        """Give back descriptors; repeatable."""
        for descriptor in (*self._open.values(), *self.joining):
            os.close(descriptor)
        self._open.clear()
        self.joining.clear()


def _number(text: str, key: str) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


@dataclass(slots=True)
class Groups:
    """All groups of one node's calls, under a parent that is named after its home so that leftovers are
    found.
    """

    layout: Layout
    parent: str
    _ready: bool = field(default=False)

    @classmethod
    def here(cls, home: Path) -> Groups:
        """For this machine. Raises MissingTool."""
        layout = parse_layout(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
        name = hashlib.blake2s(os.fsencode(home.resolve()), digest_size=6).hexdigest()
        return cls(layout, f"dsec/{name}")

    def _prepare(self) -> None:
        """Make the parents; a node without calls has none. Raises MissingTool."""
        if self._ready:
            return
        try:
            for root in self.layout.roots:
                self._delegate(root, self.parent)
        except OSError as error:
            raise MissingTool.during(
                "cgroup controllers memory, pids, cpu must be usable by root", error
            ) from error
        self._ready = True

    def worker(self, name: str, memory: int) -> list[Path]:
        """Make a worker's groups with `memory` bytes for its own processes; files that those join through.

        Raises MissingTool, InfraError.
        """
        self._prepare()
        own = Place(self.layout, f"{self.parent}/{name}/{STEM}")
        try:
            for root in self.layout.roots:
                self._delegate(root, f"{self.parent}/{name}")
        except OSError as error:
            raise InfraError.during(f"making the cgroups of {name}", error) from error
        own.make()
        try:
            own.limit(memory=memory, pids=1024, cpu=float(os.cpu_count() or 1))
        finally:
            own.close()
        return [root / self.parent / name / STEM / "cgroup.procs" for root in self.layout.roots]

    def place(self, worker: str, name: str) -> Place:
        """A place of a worker, not yet made."""
        return Place(self.layout, f"{self.parent}/{worker}/{name}")

    def remove(self, name: str) -> bool:
        """Remove a worker's groups; False while a process is on its way out."""
        removed = [_removed(root / self.parent / name) for root in self.layout.roots]
        return all(removed)

    def _delegate(self, root: Path, path: str) -> None:
        here = root
        if root == self.layout.v2:
            missing = [name for name in CONTROLLERS if name not in self.layout.v1]
            for part in ("", *Path(path).parts):
                here /= part
                here.mkdir(exist_ok=True)
                (here / "cgroup.subtree_control").write_text(" ".join("+" + name for name in missing))
        else:
            (root / path).mkdir(parents=True, exist_ok=True)

    def sweep(self) -> None:
        """Blocking: remove what a former process left; its workers died with it."""
        for name in self._leftovers():
            until = time.monotonic() + 2
            while not self.remove(name) and time.monotonic() < until:
                time.sleep(0.01)
        self.close()

    def _leftovers(self) -> Iterable[str]:
        found = (root / self.parent for root in self.layout.roots)
        there = [parent for parent in found if parent.exists()]
        return {child.name for parent in there for child in parent.iterdir() if child.is_dir()}

    def close(self) -> None:
        """Remove what `prepare` made, where nothing lives in it."""
        for root in self.layout.roots:
            for path in (root / self.parent, (root / self.parent).parent):
                with contextlib.suppress(OSError):
                    path.rmdir()
        self._ready = False


def _removed(directory: Path) -> bool:
    """The directory and those below it."""
    if not directory.exists():
        return True
    try:
        for child in directory.iterdir():
            if child.is_dir():
                child.rmdir()
        directory.rmdir()
    except OSError:
        return False
    return True
