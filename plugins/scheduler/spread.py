"""Placement of many alike at once: how many of them does each node get? Pure.

Water-filling: nodes are filled to one level of load, the lowest at which `count` of them fit, so that the
emptiest nodes get most and none is flooded. What does not fit anywhere is left over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dsec.plugins.scheduler.placement import SMALLEST, Ask, Candidate, Overcommit, fits

DEFAULT: Final = Overcommit()
STEPS: Final = 24
"""Halvings of the level: 1/16,000,000 of a node."""


def apportion(
    ask: Ask, count: int, nodes: Iterable[Candidate], overcommit: Overcommit = DEFAULT
) -> dict[str, int]:
    """How many of `count` each node gets, `count` in all unless there is no room for so many."""
    fitting = [node for node in nodes if fits(ask, node, overcommit)]
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if sum(room(ask, node, middle, overcommit) for node in fitting) >= count:
            high = middle
        else:
            low = middle
    shares = {node.node: room(ask, node, high, overcommit) for node in fitting}
    surplus = max(0, sum(shares.values()) - count)
    while surplus:  # nodes alike reach the level together
        for name in sorted(shares, key=lambda name: -shares[name])[:surplus]:
            shares[name] -= 1
            surplus -= 1
    return {name: share for name, share in shares.items() if share}


def room(ask: Ask, node: Candidate, level: float, overcommit: Overcommit) -> int:
    """How many of `ask` bring the node's scarcer resource to `level`; 1 is promised in full."""
    cpu = node.cpu * overcommit.cpu * level - node.cpu_used
    memory = max(node.memory, SMALLEST) * overcommit.memory * level - node.memory_used
    return max(0, int(min(cpu / ask.cpu, memory / ask.memory) + 1e-9))
