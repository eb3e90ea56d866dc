"""How much longer this machine takes than a usual one: `DSEC_TEST_SLOWNESS`, 1 by default.

An emulated machine sets it. What a test waits for gets more time and what it repeats is repeated less often,
with less data; what it claims stays the same.
"""

from __future__ import annotations

import math
import os
from typing import Final

SLOWNESS: Final = max(1.0, float(os.environ.get("DSEC_TEST_SLOWNESS", "1")))


def within(seconds: float) -> float:
    """A time limit."""
    return seconds * SLOWNESS


def smaller(power: int) -> int:
    """An exponent of two of an amount of data, less by that of the slowness."""
    return power - round(math.log2(SLOWNESS))


def fewer(count: int) -> int:
    """A number of repetitions, at least one."""
    return max(1, round(count / SLOWNESS))
