"""Host ids of sandboxes: a range of its own for each live one, and the user namespaces that map to them."""

from __future__ import annotations

import heapq
import os
from typing import Final

from dsec.bus.errors import NoCapacity
from dsec.bus.userns import user_namespace

RANGE: Final = 65_536
"""Ids of one sandbox."""
FIRST: Final = 1_000_000
COUNT: Final = 32_752
"""More than the processes a kernel runs by default; all ids stay below 2^31, as some programs want them."""


class Ranges:
    """Which ranges are taken; the lowest free one goes first, so that namespaces are used again."""

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


class Namespaces:
    """User namespaces by range, the last ones kept: one takes 0.13 CPU ms to make. For use in one thread."""

    _KEPT = 64

    def __init__(self) -> None:
        self._open: dict[int, int] = {}

    def get(self, base: int) -> int:
        """Descriptor of a namespace whose id 0 is the host's `base`, good until the next call.

        Raises OSError.
        """
        if (found := self._open.pop(base, None)) is None:
            while len(self._open) >= self._KEPT:
                os.close(self._open.pop(next(iter(self._open))))
            found = user_namespace(base, RANGE)
        self._open[base] = found
        return found

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
