"""How a record reads while its node is away: UNKNOWN, which nobody has written anywhere.

A node's silence concerns all its sandboxes at once. Writing that into each record would be thousands of
writes for what may be over in a second; so whoever reads records asks the watcher which nodes are well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

from dsec.bus import subjects
from dsec.bus.errors import InfraError
from dsec.bus.handlers import result
from dsec.bus.messages import Fleet, NodeStatus, Record, Standing, State
from dsec.bus.transport import Bus

FRESH: Final = 1.0
"""Seconds for which an answer of the watcher is good."""
TIMEOUT: Final = 1.0
_ENDED: Final = frozenset({State.FAILED, State.DESTROYED})


def seen(record: Record, nodes: Mapping[str, NodeStatus]) -> Record:
    """The record as far as it can be believed."""
    node = nodes.get(record.node)
    if node is None or record.state in _ENDED:
        return record
    if node.standing is Standing.ALIVE and record.epoch > node.fenced:
        return record
    why = f"{record.node} has not been heard of for {node.silent:.0f} s"
    return record.model_copy(update={"state": State.UNKNOWN, "reason": why})


class Outlook:
    """The watcher's word, kept for a second."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._nodes: dict[str, NodeStatus] = {}
        self._asked = float("-inf")

    async def over(self, records: Iterable[Record]) -> list[Record]:
        """The records as they read now; as they were written while no watcher answers."""
        nodes = await self._fleet()
        return [seen(record, nodes) for record in records]

    async def _fleet(self) -> Mapping[str, NodeStatus]:
        now = time.monotonic()
        if now - self._asked >= FRESH:
            self._asked = now
            try:
                answer = await self._bus.request(subjects.SCHED_FLEET, b"{}", timeout=TIMEOUT)
                fleet = Fleet.model_validate(result(answer.data))
            except InfraError:
                self._nodes = {}
            else:
                self._nodes = {node.node: node for node in fleet.nodes}
        return self._nodes
