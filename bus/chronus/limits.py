"""Limits of one exec, in a cgroup below its sandbox's on whatever hierarchy has the controller.

A sandbox has the same path on every hierarchy in use. Where the controllers are on version 1, an exec with
limits gets a directory on theirs, too, and its process joins all of them; on version 2 they are enabled for
the sandbox's children when the first is needed. Files: the kernel's admin-guide, `cgroup-v1/` and
`cgroup-v2.rst`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dsec.bus.errors import Unsupported
from dsec.bus.spec import Limits

CONTROLLERS: Final = ("memory", "pids", "cpu")
"""Also the names of the limits that an exec can have."""
PERIOD: Final = 100_000
OPTIONAL: Final = frozenset({"memory.memsw.limit_in_bytes", "memory.swap.max"})
"""Absent where the kernel does not account swap."""


@functools.cache
def v1_mounts() -> dict[str, Path]:
    """Where the controllers that version 1 has are mounted."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup":
            names = set(options.split(",")) & set(CONTROLLERS)
            found |= dict.fromkeys(names, Path(left.split(" ")[4]))
    return found


def beside(group: Path, v2: Path) -> dict[str, Path]:
    """The directories of `group`, which lies below `v2`, on version 1, by controller."""
    if not group.is_relative_to(v2):
        return {}
    relative = group.relative_to(v2)
    return {name: mount / relative for name, mount in v1_mounts().items()}


def settings(limits: Limits, on_v1: frozenset[str]) -> Iterator[tuple[str, str, str]]:
    """(controller, file, value) of each limit; `on_v1` names the controllers that version 1 has."""
    if limits.memory is not None and "memory" in on_v1:
        yield "memory", "memory.limit_in_bytes", str(limits.memory)
        yield "memory", "memory.memsw.limit_in_bytes", str(limits.memory)
    elif limits.memory is not None:
        yield "memory", "memory.max", str(limits.memory)
        yield "memory", "memory.swap.max", "0"
    if limits.pids is not None:
        yield "pids", "pids.max", str(limits.pids)
    if limits.cpu is not None:
        quota = max(1000, round(limits.cpu * PERIOD))
        if "cpu" in on_v1:
            yield "cpu", "cpu.cfs_period_us", str(PERIOD)
            yield "cpu", "cpu.cfs_quota_us", str(quota)
        else:
            yield "cpu", "cpu.max", f"{quota} {PERIOD}"


def apply(limits: Limits, group: Path, others: dict[str, Path]) -> tuple[Path, ...]:
    """Put `limits` on the exec's cgroup `group`; the directories made for that on version 1 (`others`).

    Raises Unsupported for a controller that no hierarchy has, OSError.
    """
    wanted = list(settings(limits, frozenset(others)))
    made = tuple(dict.fromkeys(others[name] for name, _, _ in wanted if name in others))
    for directory in made:
        directory.mkdir(exist_ok=True)
    for name in dict.fromkeys(name for name, _, _ in wanted if name not in others):
        _enable(name, group.parent)
    for name, file, value in wanted:
        place = others.get(name, group) / file
        if file not in OPTIONAL or place.exists():
            place.write_text(value)
    return made


def _enable(controller: str, parent: Path) -> None:
    """Let the children of `parent` have it. Raises Unsupported."""
    if controller not in (parent / "cgroup.controllers").read_text().split():
        raise Unsupported(f"this node has no cgroup controller {controller}", field=f"limits.{controller}")
    switch = parent / "cgroup.subtree_control"
    if controller not in switch.read_text().split():
        switch.write_text(f"+{controller}")


def oom_kills(group: Path, others: dict[str, Path]) -> int:
    """Processes of the exec that the kernel has killed for memory; 0 when its cgroup is gone."""
    v1 = others.get("memory")
    file = group / "memory.events" if v1 is None else v1 / "memory.oom_control"
    try:
        counters = dict(line.split(maxsplit=1) for line in file.read_text().splitlines())
        return int(counters.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0
