"""Control groups of the sandboxes: limits as files and values, killing, freezing, counting.

One code for every layout: each controller is used where the machine has it, on a version 1 hierarchy of its
own or on version 2 (unified). Killing and freezing always use version 2, which any kernel with idmapped
mounts has, if only without controllers (hybrid). Interfaces: the kernel's admin-guide, `cgroup-v1/` and
`cgroup-v2.rst`.

    <hierarchy>/dsec/<hash of home>/<sandbox>         the limits, on every hierarchy in use
    <version 2>/dsec/<hash of home>/<sandbox>/init    PID 1; execs get siblings of it
    <hierarchy>/dsec/<hash of home>/<sandbox>/engine  where runc, which insists, moves PID 1
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from dsec.bus.errors import InfraError, MissingTool
from dsec.bus.spec import Limits

CONTROLLERS: Final = ("memory", "pids", "cpu")
INIT: Final = "init"
ENGINE: Final = "engine"
PERIOD: Final = 100_000
"""Length of the CPU accounting period in microseconds, the kernel's default."""

BITE: Final = 16 << 20
"""Bytes asked of `memory.reclaim` at once: a call ends when it has so many, or with EAGAIN."""

CpuClass = Literal["latency", "besteffort"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this machine has its hierarchies: `v2`, `v1` by controller, and those that only runc uses."""

    v2: Path
    v1: dict[str, Path]
    others: tuple[Path, ...] = ()

    @property
    def roots(self) -> tuple[Path, ...]:
        """Mount points of the hierarchies in use, version 2 first."""
        return (self.v2, *dict.fromkeys(self.v1.values()))

    @property
    def everywhere(self) -> tuple[Path, ...]:
        """Mount points of all hierarchies: where something may be left."""
        return (*self.roots, *self.others)

    def at(self, controller: str) -> Path:
        """The mount point of the hierarchy that has `controller`."""
        return self.v1.get(controller, self.v2)


def parse_layout(mountinfo: str) -> Layout:
    """The layout told by /proc/self/mountinfo. Raises MissingTool without version 2."""
    v1: dict[str, Path] = {}
    found: dict[str, list[Path]] = {"cgroup": [], "cgroup2": []}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in found:
            point = Path(left.split(" ")[4])
            found[kind].append(point)
            v1 |= {name: point for name in options.split(",") if kind == "cgroup" and name in CONTROLLERS}
    if not found["cgroup2"]:
        raise MissingTool(
            "no cgroup version 2 hierarchy is mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
        )
    others = (point for point in found["cgroup"] if point not in v1.values())
    return Layout(found["cgroup2"][0], v1, tuple(dict.fromkeys(others)))


def parse_cpusets(mountinfo: str) -> Path | None:
    """The mount point of the version 1 hierarchy with the controller `cpuset`, if there is one."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup" and "cpuset" in options.split(","):
            return Path(left.split(" ")[4])
    return None


def settings(limits: Limits, cpu_class: CpuClass, on_v1: frozenset[str]) -> Iterator[tuple[str, str, str]]:
    """(controller, file, value) for each limit that is given; `on_v1` names the version 1 controllers."""
    if limits.memory is not None:
        yield from _memory(limits.memory, v1="memory" in on_v1)
    if limits.pids is not None:
        yield "pids", "pids.max", str(limits.pids)
    if limits.cpu is not None:
        yield from _cpu(limits.cpu, cpu_class, v1="cpu" in on_v1)


def _memory(size: int, *, v1: bool) -> Iterator[tuple[str, str, str]]:
    if v1:
        yield "memory", "memory.limit_in_bytes", str(size)
        yield "memory", "memory.memsw.limit_in_bytes", str(size)
    else:
        yield "memory", "memory.max", str(size)
        yield "memory", "memory.swap.max", "0"


def _cpu(cores: float, cpu_class: CpuClass, *, v1: bool) -> Iterator[tuple[str, str, str]]:
    quota = max(1000, round(cores * PERIOD))
    besteffort = cpu_class == "besteffort"
    if v1:
        yield "cpu", "cpu.cfs_period_us", str(PERIOD)
        yield "cpu", "cpu.cfs_quota_us", str(quota)
        yield "cpu", "cpu.shares", "2" if besteffort else str(_within(round(1024 * cores), 2, 262_144))
    else:
        yield "cpu", "cpu.max", f"{quota} {PERIOD}"
        yield "cpu", "cpu.weight", "1" if besteffort else str(_within(round(100 * cores), 1, 10_000))


def _within(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


OPTIONAL: Final = frozenset({"memory.memsw.limit_in_bytes", "memory.swap.max"})
"""Absent where the kernel does not account swap, and then there is nothing to limit."""


@dataclass(frozen=True, slots=True)
class Group:
    """The cgroups of one sandbox, existing or not; every method may be repeated."""

    layout: Layout
    path: str
    cpusets: Path | None = None
    """The hierarchy with the controller `cpuset`, where the machine has it."""

    @property
    def v2(self) -> Path:
        return self.layout.v2 / self.path

    @property
    def places(self) -> tuple[Path, ...]:
        """Where PID 1 belongs: its leaf on version 2, and the version 1 directories."""
        unified, *others = (root / self.path for root in self.layout.roots)
        return (unified / INIT, *others)

    def exists(self) -> bool:
        """Whether there is anything of it on any hierarchy."""
        return any((root / self.path).exists() for root in self.layout.everywhere)

    def make(self, limits: Limits, cpu_class: CpuClass) -> None:
        """Make the directories with `limits` in force. Raises OSError."""
        for place in self.places:
            place.mkdir(parents=True, exist_ok=True)
        for controller, name, value in settings(limits, cpu_class, frozenset(self.layout.v1)):
            file = self.layout.at(controller) / self.path / name
            if name not in OPTIONAL or file.exists():
                file.write_text(value)

    def adopt(self, pid: int) -> None:
        """Move process `pid`, which has no children yet, in. Raises OSError."""
        for place in self.places:
            (place / "cgroup.procs").write_text(str(pid))
        if self.cpusets not in {None, *self.layout.roots}:
            assert self.cpusets is not None
            place = self.cpusets / self.path
            if place.exists():
                (place / "cgroup.procs").write_text(str(pid))

    def pin(self, cpus: str) -> None:
        """Only these processors (`0-1,3`) for what is inside; before `adopt`. Raises OSError."""
        if self.cpusets is None:
            return
        place = self.cpusets / self.path
        place.mkdir(parents=True, exist_ok=True)
        if self.cpusets != self.layout.v2:
            (place / "cpuset.mems").write_text((place.parent / "cpuset.mems").read_text())
        (place / "cpuset.cpus").write_text(cpus)

    def pinned(self) -> str:
        """What `pin` set; empty when nothing did."""
        if self.cpusets is not None:
            with contextlib.suppress(OSError):
                return (self.cpusets / self.path / "cpuset.cpus").read_text().strip()
        return ""

    def oom_kills(self) -> int:
        """Processes that the kernel has killed for this group's memory limit; 0 when it is gone."""
        group = self.layout.at("memory") / self.path
        if "memory" not in self.layout.v1:
            return self._counter(group / "memory.events", "oom_kill")
        # version 1 counts where the process was, not above it
        return sum(self._counter(one / "memory.oom_control", "oom_kill") for one in (group, group / ENGINE))

    def freeze(self, frozen: bool) -> None:  # noqa: FBT001 - the file takes just this value
        """Ask for it; `is_frozen` tells when it is done. Raises OSError."""
        (self.v2 / "cgroup.freeze").write_text(str(int(frozen)))

    def is_frozen(self) -> bool:
        return self._counter(self.v2 / "cgroup.events", "frozen") == 1

    def reclaim(self, within: float) -> None:
        """Blocking: have the kernel take what memory it can in about `within` seconds. Raises OSError.

        Frozen, it may go to swap, which `allow_swap` ends. Nothing where the kernel has no way to.
        """
        group, deadline = self.layout.at("memory") / self.path, time.monotonic() + within
        if "memory" in self.layout.v1:
            _write_if_there(group / "memory.force_empty", "0")
            return
        self.allow_swap(allowed=True)
        with contextlib.suppress(BlockingIOError):  # EAGAIN: there is no more to be had
            while time.monotonic() < deadline and _write_if_there(group / "memory.reclaim", str(BITE)):
                pass

    def allow_swap(self, *, allowed: bool) -> None:
        """Version 2 only; what lies in swap comes back as it is touched. Raises OSError."""
        if "memory" not in self.layout.v1:
            _write_if_there(self.v2 / "memory.swap.max", "max" if allowed else "0")

    def kill(self) -> None:
        """Kill every process in it, frozen or not."""
        with contextlib.suppress(FileNotFoundError):
            (self.v2 / "cgroup.kill").write_text("1")

    def remove(self) -> bool:
        """Remove the directories; False while a process is still on its way out."""
        try:
            for root in self.layout.everywhere:
                _remove_tree(root / self.path)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        return True

    @staticmethod
    def _counter(file: Path, key: str) -> int:
        with contextlib.suppress(FileNotFoundError, OSError):
            for line in file.read_text().splitlines():
                if line.startswith(key + " "):
                    return int(line.rpartition(" ")[2])
        return 0


def _write_if_there(file: Path, value: str) -> bool:
    """False when this kernel has no such file. Raises OSError."""
    try:
        with file.open("r+", encoding="ascii") as opened:
            opened.write(value)
    except FileNotFoundError:
        return False
    return True


def _remove_tree(directory: Path) -> None:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in {errno.EBUSY, errno.ENOTEMPTY}:
            raise
        children = [child for child in directory.iterdir() if child.is_dir()]
        if not children:
            raise
        for child in children:
            _remove_tree(child)
        directory.rmdir()


@dataclass(frozen=True, slots=True)
class Cgroups:
    """All groups of one driver, under a parent that is named after its home so that leftovers are found."""

    layout: Layout
    parent: str
    cpusets: Path | None = None
    _ready: list[bool] = field(default_factory=list)

    @classmethod
    def here(cls, home: Path) -> Cgroups:
        """For this machine. Raises MissingTool."""
        told = Path("/proc/self/mountinfo").read_text()
        layout, cpusets = parse_layout(told), parse_cpusets(told)
        if cpusets is None and "cpuset" in (layout.v2 / "cgroup.controllers").read_text().split():
            cpusets = layout.v2
        name = hashlib.blake2s(str(home.resolve()).encode(), digest_size=6).hexdigest()
        return cls(layout, f"dsec/{name}", cpusets)

    def of(self, sandbox: str) -> Group:
        return Group(self.layout, f"{self.parent}/{sandbox}", self.cpusets)

    def prepare(self) -> None:
        """Make the parents and, on version 2, hand the controllers down to them. Raises MissingTool."""
        if self._ready:
            return
        try:
            self._refuse_missing()
            self._make_parents()
        except OSError as error:
            needed = ", ".join(CONTROLLERS)
            raise MissingTool.during(f"cgroup controllers {needed} must be usable by root", error) from error
        self._ready.append(True)

    def _on_v2(self) -> list[str]:
        return [name for name in CONTROLLERS if name not in self.layout.v1]

    def _handed_down(self) -> list[str]:
        return [*self._on_v2(), *(["cpuset"] if self.cpusets == self.layout.v2 else [])]

    def _refuse_missing(self) -> None:
        there = (self.layout.v2 / "cgroup.controllers").read_text(encoding="ascii").split()
        missing = [name for name in self._on_v2() if name not in there]
        if missing:
            names = ", ".join(missing)
            raise MissingTool(f"no cgroup hierarchy has {names}: enable them, or mount their version 1")

    def _make_parents(self, attempts: int = 5) -> None:
        """Repeated when another driver that ends has just removed the common part."""
        try:
            self._delegate(self._handed_down())
            self._make_cpusets()
            for root in self.layout.roots:
                (root / self.parent).mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            if not attempts:
                raise
            self._make_parents(attempts - 1)

    def _make_cpusets(self) -> None:
        """On version 1 a new set is empty, and nobody could join; on version 2 the controller is optional."""
        if self.cpusets is None:
            return
        here = self.cpusets
        for part in Path(self.parent).parts:
            above, here = here, here / part
            here.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems") if self.cpusets != self.layout.v2 else ():
                if not (here / name).read_text().strip():
                    (here / name).write_text((above / name).read_text())

    def _delegate(self, controllers: list[str]) -> None:
        here = self.layout.v2
        for part in ("", *Path(self.parent).parts):
            here /= part
            here.mkdir(exist_ok=True)
            if controllers:
                (here / "cgroup.subtree_control").write_text(" ".join("+" + name for name in controllers))

    def found(self) -> frozenset[str]:
        """Every sandbox that has a group on some hierarchy."""
        homes = (root / self.parent for root in self.layout.everywhere)
        return frozenset(
            child.name for home in homes if home.exists() for child in home.iterdir() if child.is_dir()
        )

    def remove_parents(self) -> None:
        """Remove what `prepare` made, where nothing lives in it."""
        self._ready.clear()
        for root in self.layout.everywhere:
            for path in (root / self.parent, (root / self.parent).parent):
                with contextlib.suppress(OSError):
                    path.rmdir()


async def until(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    """Wait for `condition()` to hold, asking ever more seldom. Raises InfraError after `seconds`."""
    pause, deadline = 0.001, asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise InfraError(f"{what} took over {seconds:.0f} s: look for processes in state D")
        await asyncio.sleep(pause)
        pause = min(2 * pause, 0.05)
