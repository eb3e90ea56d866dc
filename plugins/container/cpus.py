"""Which processors a sandbox has: as many as its limit needs, those that the others leave most free. Pure.

Programs count processors by their affinity (nproc, os.cpu_count, thread pools): with a CPU set of so many
they find what the limit allows, and not what the machine has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cpus:
    """The machine's processors, and how much of each was promised to sandboxes."""

    all: frozenset[int]
    taken: dict[str, tuple[frozenset[int], float]] = field(default_factory=dict)

    def take(self, sandbox: str, cores: float | None) -> frozenset[int]:
        """Processors for a sandbox limited to `cores`; all of them where it may need all."""
        self.free(sandbox)
        chosen = choose(self.all, self._loads(), cores)
        self.taken[sandbox] = (chosen, (cores or len(self.all)) / len(chosen))
        return chosen

    def keep(self, sandbox: str, chosen: frozenset[int]) -> None:
        """It has these from before."""
        self.taken[sandbox] = (chosen, 1.0)

    def free(self, sandbox: str) -> None:
        """Repeatable."""
        self.taken.pop(sandbox, None)

    def _loads(self) -> dict[int, float]:
        loads = dict.fromkeys(self.all, 0.0)
        for chosen, share in self.taken.values():
            for cpu in chosen & self.all:
                loads[cpu] += share
        return loads


def choose(every: frozenset[int], loads: Mapping[int, float], cores: float | None) -> frozenset[int]:
    """The `cores` (rounded up) least loaded of `every`; all without a limit."""
    count = len(every) if cores is None else min(len(every), math.ceil(cores))
    return frozenset(sorted(every, key=lambda cpu: (loads.get(cpu, 0.0), cpu))[:count])


def listed(cpus: frozenset[int]) -> str:
    """As cpuset.cpus takes it."""
    return ",".join(map(str, sorted(cpus)))


def parse(text: str) -> frozenset[int]:
    """`0-3,7` as processors. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
