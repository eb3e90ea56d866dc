"""How many bytes of a command's output to take, to publish and to drop: pure decisions.

One exec has one offset space for stdout and stderr. `quota` is the budget of captured bytes: at `quota`
bytes nothing is truncated, one byte more is. `credit` is the reader's absolute offset; it binds while the
lease runs and a reader is attached, otherwise the log alone is written, to the quota.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dsec.bus.frames import FRAME_BYTES

AHEAD: Final = 4 * FRAME_BYTES
"""Bytes that may be taken out of the pipe before they are published."""


@dataclass(slots=True)
class Credit:
    """The reader's grant. Offsets are absolute and never go back; `until` is a monotonic time in seconds."""

    offset: int = 0
    until: float = -math.inf

    def grant(self, offset: int, lease: float, now: float) -> None:
        """A repeated or overtaken grant renews the lease and takes nothing back."""
        self.offset = max(self.offset, offset)
        self.until = max(self.until, now + lease)

    def detach(self) -> None:
        """Nobody reads: write the log only."""
        self.until = -math.inf

    def limit(self, now: float) -> float:
        """The offset up to which frames may be published now."""
        return self.offset if now < self.until else math.inf


@dataclass(frozen=True, slots=True)
class Take:
    """What to do with a pipe next: take `bytes` of it (0: leave it), or `drop` what comes."""

    bytes: int = 0
    truncated: bool = False


def take(waiting: int, *, taken: int, published: int, quota: int, limit: float) -> Take:
    """What to do with a pipe that holds `waiting` bytes when `taken` and `published` bytes came before.

    Past the quota any further byte means truncation. Up to it, output is taken at most `AHEAD` of what is
    published and one frame ahead of the limit: the command is held back by its pipe.
    """
    if waiting == 0:
        return Take()
    if taken >= quota:
        return Take(truncated=True)
    room = min(quota, published + AHEAD, limit + FRAME_BYTES) - taken
    return Take(bytes=int(max(0, min(waiting, room))))


def share(out: int, err: int, quota: int) -> tuple[int, int, bool]:
    """How much of stdout, then stderr, fits into `quota`, and whether something does not."""
    first = min(out, quota)
    second = min(err, quota - first)
    return first, second, out + err > quota


def publishable(*, published: int, taken: int, limit: float) -> int:
    """Bytes of the next frame, 0 when there is nothing or no credit."""
    return int(max(0, min(taken - published, FRAME_BYTES, limit - published)))
