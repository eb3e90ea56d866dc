"""Placement: which of these nodes gets the next sandbox? Pure; the caller brings the facts and the dice.

Filter (healthy, has the backend, fits), then the least loaded of `CHOICES` random ones: power of k choices
(Mitzenmacher 2001), which stays good when the facts are a second old. A node's share of what was placed
since the last heartbeats is capped, so that a fresh, empty node is not flooded before it can say so.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dsec.bus.spec import GIB, MIB

CHOICES: Final = 3
SHARE: Final = 2.0
"""A node may get so many times its fair share of the placements no heartbeat shows yet…"""
BURST: Final = 16
"""…and so many in any case."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be placed; `cpu` in cores, `memory` in bytes."""

    backend: str
    cpu: float
    memory: int
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node as the scheduler sees it: its last heartbeat, plus `recent` placements not in it yet.

    `cpu_used` and `memory_used` include the recent ones.
    """

    node: str
    backends: frozenset[str]
    cpu: float
    memory: int
    cpu_used: float
    memory_used: int
    recent: int = 0
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class Overcommit:
    """How many times its size a node may promise. Limits are ceilings, not reservations: some 90 % of
    sandboxes use under 5 % of the CPU they asked for. A node short of the real thing vetoes."""

    cpu: float = 50.0
    memory: float = 8.0


DEFAULT_ASK: Final = (0.5, 512 * MIB)
"""Cores and bytes that a sandbox counts for when its spec leaves the limits to the node."""
SMALLEST: Final = GIB // 1024


def choose(
    ask: Ask, nodes: Iterable[Candidate], rng: random.Random, overcommit: Overcommit = Overcommit()
) -> str | None:
    """The node for `ask`, or None when no healthy one has the backend and fits."""
    fitting = [node for node in nodes if fits(ask, node, overcommit)]
    if not fitting:
        return None
    eligible = under_cap(fitting)
    drawn = rng.sample(eligible, min(CHOICES, len(eligible)))
    return min(drawn, key=lambda node: load(node, overcommit)).node


def choose_many(
    ask: Ask,
    count: int,
    nodes: Iterable[Candidate],
    rng: random.Random,
    overcommit: Overcommit = Overcommit(),
) -> list[str]:
    """`choose` for `count` alike, each with those before it in view; fewer when there is no more room."""
    room = {node.node: node for node in nodes if fits(ask, node, overcommit)}
    chosen: list[str] = []
    while room and len(chosen) < count:
        eligible = [node.node for node in under_cap([*room.values()])]
        for _ in range(min(count - len(chosen), len(eligible))):  # then the cap is looked at again
            drawn = [room[name] for name in rng.sample(eligible, min(CHOICES, len(eligible)))]
            best = min(drawn, key=lambda node: load(node, overcommit))
            chosen.append(best.node)
            room[best.node] = filled = _with(ask, best)
            if not fits(ask, filled, overcommit):
                del room[best.node]
                break
    return chosen


def _with(ask: Ask, node: Candidate) -> Candidate:
    """The node with one more placement on it."""
    return Candidate(
        node.node,
        node.backends,
        node.cpu,
        node.memory,
        node.cpu_used + ask.cpu,
        node.memory_used + ask.memory,
        node.recent + 1,
        healthy=node.healthy,
    )


def fits(ask: Ask, node: Candidate, overcommit: Overcommit) -> bool:
    """Whether the node is healthy, not excluded, has the backend and room."""
    return (
        node.healthy
        and node.node not in ask.excluded
        and ask.backend in node.backends
        and node.cpu_used + ask.cpu <= node.cpu * overcommit.cpu
        and node.memory_used + ask.memory <= node.memory * overcommit.memory
    )


def under_cap(nodes: Sequence[Candidate]) -> Sequence[Candidate]:
    """Those that are not over their share of the recent placements; never empty."""
    fair = sum(node.recent for node in nodes) / len(nodes)
    cap = max(BURST, SHARE * fair)
    return [node for node in nodes if node.recent < cap] or nodes


def load(node: Candidate, overcommit: Overcommit) -> float:
    """0 for an empty node, 1 for one whose scarcer resource is promised in full."""
    cpu = node.cpu_used / (node.cpu * overcommit.cpu)
    memory = node.memory_used / (max(node.memory, SMALLEST) * overcommit.memory)
    return max(cpu, memory)
