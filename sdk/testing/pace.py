"""How much longer this machine takes than a usual one: `DSEC_TEST_SLOWNESS`, 1 by default.

An emulated machine sets it. What a test waits for gets more time and what it repeats is repeated less often;
what it claims stays the same.
"""

from __future__ import annotations

import os
from typing import Final

SLOWNESS: Final = max(1.0, float(os.environ.get("DSEC_TEST_SLOWNESS", "1")))


def within(seconds: float) -> float:
    """A time limit."""
    return seconds * SLOWNESS


def fewer(count: int) -> int:
    """A number of repetitions, at least one."""
    return max(1, round(count / SLOWNESS))
