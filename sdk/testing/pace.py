"""How much longer this machine takes than a usual one: `DSEC_TEST_SLOWNESS`, 1 by default.

An emulated machine sets it. What a test waits for gets more time and what it repeats is repeated less often,
with less data; what it claims stays the same.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")
SLOWNESS: Final = max(1.0, float(os.environ.get("DSEC_TEST_SLOWNESS", "1")))


def within(seconds: float) -> float:
    """A time limit."""
    return seconds * SLOWNESS


def smaller(power: int) -> int:
    """An exponent of two of an amount of data, less by that of the slowness, rounded up."""
    return power - math.ceil(math.log2(SLOWNESS))


def fewer(count: int) -> int:
    """A number of repetitions, at least one; less by more than the slowness: emulation slows starts most."""
    return max(1, round(count / math.pow(SLOWNESS, 1.5)))


def some(values: Sequence[T]) -> Sequence[T]:
    """Of a series of cases, its first, its last and others evenly between them: two at least."""
    count = min(len(values), max(2, fewer(len(values))))
    return (
        [values[round(at * (len(values) - 1) / (count - 1))] for at in range(count)] if count > 1 else values
    )
