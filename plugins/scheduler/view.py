"""The cluster as heartbeats show it, with this scheduler's own recent placements laid over. No I/O.

Times are seconds of a monotonic clock, given by the caller; only a node's clock offset is measured against
unix time. Nothing is durable: a scheduler that starts anew has the whole view after one heartbeat period.
"""

from __future__ import annotations

from collections import deque
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
OFFSETS: Final = 5
"""Heartbeats by which that is judged: one may be late, the least late of several tells the clock."""
SETTLE: Final = 0.2
"""Seconds a placement takes to reach its node's books; an earlier heartbeat cannot show it."""
LOST: Final = 5.0
"""Seconds after which a placement that no heartbeat confirmed is taken for lost."""


@dataclass(frozen=True, slots=True)
class _Placement:
    at: float
    cpu: float
    memory: int
    count: int


@dataclass(slots=True)
class _Node:
    """`recent`: placements that no heartbeat shows yet, oldest first, with their sums."""

    heartbeat: Heartbeat
    backends: frozenset[str]
    seen: float
    offsets: deque[int] = field(default_factory=lambda: deque(maxlen=OFFSETS))
    recent: deque[_Placement] = field(default_factory=deque)
    cpu: float = 0.0
    memory: int = 0
    count: int = 0
    told: Candidate | None = None

    @property
    def offset(self) -> int:
        """Milliseconds that the clock is ahead: a heartbeat that was late tells less, none tells more."""
        return max(self.offsets)

    def add(self, placement: _Placement) -> None:
        self.recent.append(placement)
        self.cpu += placement.cpu
        self.memory += placement.memory
        self.count += placement.count
        self.told = None

    def drop(self, until: float) -> None:
        """Forget placements up to a time."""
        while self.recent and self.recent[0].at <= until:
            placement = self.recent.popleft()
            self.cpu -= placement.cpu
            self.memory -= placement.memory
            self.count -= placement.count
            self.told = None
        if not self.recent:
            self.cpu = 0.0  # what rounding has left

    def candidate(self, *, healthy: bool) -> Candidate:
        """As the placement sees it; made anew only when something changed."""
        if self.told is None or self.told.healthy is not healthy:
            beat = self.heartbeat
            self.told = Candidate(
                node=beat.node,
                backends=self.backends,
                cpu=beat.cpu,
                memory=beat.memory,
                cpu_used=beat.cpu_used + self.cpu,
                memory_used=beat.memory_used + self.memory,
                recent=self.count,
                healthy=healthy,
            )
        return self.told


class View:
    """Fed with heartbeats and placements; tells candidates."""

    def __init__(self, suspect: float = SUSPECT) -> None:
        self._suspect = suspect
        self._nodes: dict[str, _Node] = {}
        self._pruned = 0.0

    def heard(self, heartbeat: Heartbeat, now: float, unix_ms: int) -> None:
        """Take a heartbeat in; of an older epoch it is a dead process's last word, and ignored."""
        node = self._nodes.get(heartbeat.node)
        if node is not None and heartbeat.epoch < node.heartbeat.epoch:
            return
        if node is None:
            node = _Node(heartbeat, frozenset(heartbeat.backends), now)
        node.heartbeat, node.backends = heartbeat, frozenset(heartbeat.backends)
        node.seen, node.told = now, None
        node.offsets.append(heartbeat.time - unix_ms)
        node.drop(now - SETTLE)
        self._nodes[heartbeat.node] = node
        if now - self._pruned >= FORGET:
            self._pruned = now
            self._nodes = {name: one for name, one in self._nodes.items() if now - one.seen < FORGET}

    def deaf(self, seconds: float) -> None:
        """We heard nobody for so long and are to blame: nobody was silent meanwhile."""
        for node in self._nodes.values():
            node.seen += seconds

    def placed(self, node: str, ask: Ask, now: float, count: int = 1) -> None:
        """Lay `count` placements over the node until a heartbeat shows them."""
        known = self._nodes.get(node)
        if known is not None:
            known.add(_Placement(now, ask.cpu * count, ask.memory * count, count))

    def __len__(self) -> int:
        """How many nodes it was told of and has not forgotten."""
        return len(self._nodes)

    def knows(self, node: str) -> bool:
        """Whether it was ever heard, and is not forgotten."""
        return node in self._nodes

    def alive(self, node: str, now: float) -> bool:
        """Whether the node has been heard within `suspect` seconds, full, draining or not."""
        known = self._nodes.get(node)
        return known is not None and now - known.seen < self._suspect

    def candidates(self, now: float) -> Iterator[Candidate]:
        """Every node that is not forgotten; suspect, draining and clock-skewed ones are not healthy."""
        for node in self._nodes.values():
            silent = now - node.seen
            if silent < FORGET:
                node.drop(now - LOST)
                fit = not node.heartbeat.draining and abs(node.offset) <= OFFSET
                yield node.candidate(healthy=fit and silent < self._suspect)
