"""Sheds what a service cannot do in time, before any work on it: past its capacity a queue only adds delay.

Random early detection (Floyd and Jacobson, "Random Early Detection Gateways for Congestion Avoidance", 1993),
with the time that requests spend here in place of a queue's length: it tells of this process, of the broker
and of whomever is asked meanwhile. From `low` seconds on a growing share is shed, from `high` seconds on all
but a few, by which the recovery is noticed; what exceeds `most` requests in hand is shed in any case.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final

from dsec.bus.errors import Overloaded

LOW: Final = 0.08
HIGH: Final = 0.2
MOST: Final = 1024
SHARE: Final = 0.95
"""Of requests, that is shed at the most."""
SETTLE: Final = 0.1
"""Seconds over which the time that requests take is averaged."""
RETRY_AFTER: Final = 1.0


class Shedder:
    """`clock` in seconds; `dice` gives a number in 0…1."""

    def __init__(
        self,
        low: float = LOW,
        high: float = HIGH,
        most: int = MOST,
        *,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._low, self._high, self._most = low, high, most
        self._clock, self._dice = clock, dice
        self._average = 0.0
        self._last = clock()
        self.in_hand = 0
        self.shed = 0
        """How many were refused so far."""

    def error(self) -> Overloaded | None:
        """What a request that comes now is refused with, if it is; it is not in hand then."""
        if not self._is_over():
            return None
        self.shed += 1
        return Overloaded("more requests than can be met in time; try again", retry_after=RETRY_AFTER)

    def passing(self) -> Passing:
        """One request is in hand while the block runs."""
        return Passing(self)

    def enter(self) -> float:
        """See `passing`: when the request came in."""
        began = self._clock()
        if not self.in_hand:
            self._last = began
        self.in_hand += 1
        return began

    def leave(self, began: float) -> None:
        """The request that came in then is dealt with."""
        self.in_hand -= 1
        now = self._clock()
        weight = min(1.0, max(0.001, (now - self._last) / SETTLE))
        self._average += weight * (now - began - self._average)
        self._last = now

    def pause(self) -> float:
        """A request is not in hand any more, and not dealt with either; when that was."""
        self.in_hand -= 1
        return self._clock()

    def _is_over(self) -> bool:
        if not self.in_hand:
            return False
        if self.in_hand >= self._most:
            return True
        share = (self.delay() - self._low) / (self._high - self._low)
        return share > 0 and self._dice() < min(SHARE, share)

    def delay(self) -> float:
        """Seconds that a request takes now; while none comes back at all, at least for how long that is."""
        return max(self._average, self._clock() - self._last)


class Passing:
    """A block in which one request is in hand."""

    __slots__ = ("_began", "_shedder")

    def __init__(self, shedder: Shedder) -> None:
        self._shedder = shedder

    def __enter__(self) -> None:
        self._began = self._shedder.enter()
        _PASSING.set(self)

    def __exit__(self, *_: object) -> None:
        self._shedder.leave(self._began)
        _PASSING.set(None)

    def paused(self) -> float:
        """It is not in hand from now on."""
        return self._shedder.pause()

    def resumed(self, since: float) -> None:
        """It is again; the time between does not count."""
        self._began += self._shedder.enter() - since


_PASSING: ContextVar[Passing | None] = ContextVar("passing", default=None)


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """A request that waits for its own project's sake is not in hand meanwhile: it tells nothing of this
    process, and others are not shed for it.
    """
    passing = _PASSING.get()
    if passing is None:
        yield
        return
    since = passing.paused()
    try:
        yield
    finally:
        passing.resumed(since)
