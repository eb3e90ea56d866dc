"""What core asks schedulers about many sandboxes and many nodes. Raises NoCapacity, InfraError."""

from __future__ import annotations

from typing import Final

from dsec.bus import subjects
from dsec.bus.core.jobs.messages import Spread
from dsec.bus.errors import NodeLost
from dsec.bus.handlers import result
from dsec.bus.messages import Place
from dsec.bus.transport import Bus

TIMEOUT: Final = 3.0
"""Seconds for a scheduler's word; a fresh one listens for a heartbeat period before it speaks."""


async def spread(bus: Bus, asked: Spread) -> dict[str, int]:
    """How many of `asked.count` each node is to get; fewer in all when there is no more room."""
    answer = await bus.request(subjects.SCHED_SPREAD, asked.model_dump_json().encode(), timeout=TIMEOUT)
    nodes: dict[str, int] = result(answer.data)["nodes"]
    return nodes


async def nodes(bus: Bus) -> dict[str, bool]:
    """Every node heard of within the last hour, and whether it lives."""
    answer = await bus.request(subjects.SCHED_NODES, b"{}", timeout=TIMEOUT)
    known: dict[str, bool] = result(answer.data)["nodes"]
    return known


async def is_dead(bus: Bus, node: str) -> bool:
    """Whether the schedulers have not heard of the node lately."""
    body = Place(backend="", at=node).model_dump_json().encode()
    try:
        result((await bus.request(subjects.SCHED_PLACE, body, timeout=TIMEOUT)).data)
    except NodeLost as error:
        return "nobody answers" not in error.message  # that would be: no scheduler
    return False
