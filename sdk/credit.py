"""How much output a reader has asked for: pure arithmetic, the bound of a reader's memory.

A grant is an absolute offset: everything up to `taken + window` may be sent, where `taken` is what the
consumer took. It is renewed when half the window was taken and at half of the lease; a consumer that stops
gets its last grant renewed, so the command waits like one behind a full pipe, and nothing more is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOW: Final = 4 * 1024 * 1024
LEASE: Final = 10.0


@dataclass(slots=True)
class Credit:
    """Bytes are offsets in the exec's log, times are seconds of the event loop's clock."""

    window: int = WINDOW
    lease: float = LEASE
    granted: int = -1
    at: float = 0.0

    def owed(self, taken: int) -> bool:
        """Whether the consumer took so much that a new grant is due."""
        return self.granted < 0 or taken + self.window - self.granted >= max(1, self.window // 2)

    def due_in(self, taken: int, now: float) -> float:
        """Seconds until the next grant; 0 when one is due."""
        if self.owed(taken):
            return 0.0
        return max(0.0, self.at + self.lease / 2 - now)

    def grant(self, taken: int, now: float) -> int:
        """The offset to grant now; never less than before."""
        self.granted = max(self.granted, taken + self.window)
        self.at = now
        return self.granted

    def fits(self, taken: int, end: int) -> bool:
        """Whether output that ends at offset `end` is within the window."""
        return end <= taken + self.window

    def room(self, taken: int, expected: int) -> int:
        """How many bytes from `expected` on fit the window."""
        return max(0, taken + self.window - expected)
