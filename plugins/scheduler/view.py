"""The cluster as heartbeats show it, with this scheduler's own recent placements laid over. No I/O.

Times are seconds of a monotonic clock, given by the caller; only a node's clock offset is measured against
unix time. Nothing is durable: a scheduler that starts anew has the whole view after one heartbeat period.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from dsec.bus.messages import Heartbeat
from dsec.plugins.scheduler.placement import Ask, Candidate

SUSPECT: Final = 5.0
"""Seconds without a heartbeat after which a node gets no work."""
FORGET: Final = 3600.0
"""Seconds without a heartbeat after which a node is not listed any more."""
OFFSET: Final = 1000
"""Milliseconds that a node's clock may be off: deadlines are absolute."""
SETTLE: Final = 0.5
"""Seconds a placement takes to reach its node's books; an earlier heartbeat cannot show it."""
LOST: Final = 5.0
"""Seconds after which a placement that no heartbeat confirmed is taken for lost."""


@dataclass(frozen=True, slots=True)
class _Placement:
    at: float
    cpu: float
    memory: int


@dataclass(slots=True)
class _Node:
    heartbeat: Heartbeat
    seen: float
    offset: int
    recent: list[_Placement] = field(default_factory=list)


class View:
    """Fed with heartbeats and placements; tells candidates."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def heard(self, heartbeat: Heartbeat, now: float, unix_ms: int) -> None:
        """Take a heartbeat in; of an older epoch it is a dead process's last word, and ignored."""
        node = self._nodes.get(heartbeat.node)
        if node is not None and heartbeat.epoch < node.heartbeat.epoch:
            return
        recent = [] if node is None else [one for one in node.recent if _hidden(one, now)]
        self._nodes[heartbeat.node] = _Node(heartbeat, now, heartbeat.time - unix_ms, recent)

    def placed(self, node: str, ask: Ask, now: float) -> None:
        """Lay a placement over the node until a heartbeat shows it."""
        known = self._nodes.get(node)
        if known is not None:
            known.recent.append(_Placement(now, ask.cpu, ask.memory))

    def alive(self, node: str, now: float) -> bool:
        """Whether the node has been heard within `SUSPECT`, full, draining or not."""
        known = self._nodes.get(node)
        return known is not None and now - known.seen < SUSPECT

    def candidates(self, now: float) -> Iterator[Candidate]:
        """Every node that is not forgotten; suspect, draining and clock-skewed ones are not healthy."""
        self._nodes = {name: node for name, node in self._nodes.items() if now - node.seen < FORGET}
        for name, node in self._nodes.items():
            beat = node.heartbeat
            recent = node.recent = [one for one in node.recent if now - one.at < LOST]
            yield Candidate(
                node=name,
                backends=frozenset(beat.backends),
                cpu=beat.cpu,
                memory=beat.memory,
                cpu_used=beat.cpu_used + sum(one.cpu for one in recent),
                memory_used=beat.memory_used + sum(one.memory for one in recent),
                recent=len(recent),
                healthy=self.alive(name, now) and not beat.draining and abs(node.offset) <= OFFSET,
            )


def _hidden(placement: _Placement, now: float) -> bool:
    return now - placement.at < SETTLE
