"""How long each node has been silent while we were listening, and which of them may be declared dead. No I/O.

Only the watcher's own connected time counts, in ticks: not while it has no broker, not in the grace after it
found one again, not the time in which it did not run itself, and not while it hears nobody at all though it
knows of several: that is its own trouble, or the broker's, and fails nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

SHARE: Final = 0.2
"""Of the nodes, how many may be declared failed within the window without the operator's word…"""
LEAST: Final = 1
"""…and how many in any case."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: `suspect` without a heartbeat, `fail` likewise, `grace` after the watcher's own outage,
    `tick` between looks, `window` in which nodes fail "at once"."""

    suspect: float = 5.0
    fail: float = 75.0
    grace: float = 10.0
    tick: float = 1.0
    window: float = 600.0


DEFAULT: Final = Patience()


@dataclass(slots=True)
class Silence:
    """Fed with heartbeats and ticks; times are seconds of a monotonic clock."""

    patience: Patience
    _quiet: dict[str, float] = field(default_factory=dict)
    _ticked: float | None = None
    _from: float = 0.0

    def know(self, nodes: Iterable[str]) -> None:
        """These nodes live, as the table has it; a new one is given time from now, others are forgotten."""
        self._quiet = {node: self._quiet.get(node, 0.0) for node in nodes}

    def heard(self, node: str) -> None:
        """A heartbeat came."""
        if node in self._quiet:
            self._quiet[node] = 0.0

    def of(self, node: str) -> float:
        """Seconds of silence that count."""
        return self._quiet.get(node, 0.0)

    def suspect(self, node: str) -> bool:
        return self.of(node) >= self.patience.suspect

    def tick(self, now: float, *, connected: bool) -> None:
        """Count the time since the last tick, if it may count."""
        last, self._ticked = self._ticked, now
        if not connected:
            self._from = now + self.patience.grace
        if last is None:
            self._from = now + self.patience.grace
            return
        if connected and now >= self._from:
            self._count(min(now - last, 2 * self.patience.tick))

    def _count(self, seconds: float) -> None:
        if len(self._quiet) > 1 and all(quiet >= self.patience.suspect for quiet in self._quiet.values()):
            return
        for node in self._quiet:
            self._quiet[node] += seconds

    def suspects(self) -> int:
        """How many nodes are suspect."""
        return sum(map(self.suspect, self._quiet))

    def due(self) -> list[str]:
        """The nodes that have been silent for too long, the longest silent first."""
        late = [node for node, quiet in self._quiet.items() if quiet >= self.patience.fail]
        return sorted(late, key=lambda node: -self._quiet[node])


def allowed(due: list[str], *, silent: int, nodes: int, lately: int) -> list[str]:
    """Those of `due` that may be declared failed: all of them, or none when too many are silent at once.

    `silent`: suspect nodes, the due ones among them, since those who are cut off together are not due in the
    same moment. `nodes`: all that live or were declared failed lately; `lately`: those of them that were,
    back or not. Many nodes silent at once are a network that is cut, and failing a part helps nobody.
    """
    most = max(LEAST, int(SHARE * nodes))
    return due if silent + lately <= most else []
