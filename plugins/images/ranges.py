"""Which host ids belong to which live sandbox: a range of its own each, the lowest free one first."""

from __future__ import annotations

import heapq
from typing import Final

from dsec.bus.errors import NoCapacity
from dsec.plugins.images.rootfs import RANGE

FIRST: Final = 1_000_000
COUNT: Final = 32_752
"""More than the processes a kernel runs by default; all ids stay below 2^31, as some programs want them."""


class Ranges:
    def __init__(self) -> None:
        self._freed: list[int] = []
        self._next = 0

    def take(self) -> int:
        """First id of a free range. Raises NoCapacity."""
        if self._freed:
            return FIRST + heapq.heappop(self._freed) * RANGE
        if self._next == COUNT:
            raise NoCapacity(f"all {COUNT} id ranges of this node are taken")
        self._next += 1
        return FIRST + (self._next - 1) * RANGE

    def give(self, base: int) -> None:
        """The range is free again."""
        heapq.heappush(self._freed, (base - FIRST) // RANGE)

    def claim(self, bases: list[int]) -> None:
        """At the start: these are taken by sandboxes of a former process."""
        taken = {(base - FIRST) // RANGE for base in bases}
        self._next = max(taken, default=-1) + 1
        self._freed = sorted(set(range(self._next)) - taken)
