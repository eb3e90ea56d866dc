"""The plan of a batch: where each number lies and how far it is. Pure.

A number is UNPLACED, ORDERED (its node is stored, the order may have been sent), ACCEPTED (its node has it),
RUNNING or FAILED. Its node changes only while the batch is being placed, and is stored before the order goes
out: a core that takes over asks the same node again.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from enum import IntEnum
from itertools import groupby
from typing import Any, Final

import orjson

from dsec.bus.core.jobs.messages import Batch, Failures, NodeBatchAnswer, Phase
from dsec.bus.core.jobs.runs import numbers_of, runs_of
from dsec.bus.errors import DsecError

_NOWHERE: Final = 0xFFFF
_KINDS: Final = 64
"""Different errors that are kept apart: messages may name a sandbox each, and the state is one message."""


class Status(IntEnum):
    UNPLACED = 0
    ORDERED = 1
    ACCEPTED = 2
    RUNNING = 3
    FAILED = 4


class Plan:
    """Of `batch.count` numbers, as `batch` tells."""

    def __init__(self, batch: Batch) -> None:
        self._status = bytearray(batch.count)
        self._node = array("H", [_NOWHERE]) * batch.count
        self._nodes = list(batch.nodes)
        self._failed: dict[bytes, set[int]] = defaultdict(set)
        for start, stop, node in batch.placed:
            for number in range(start, stop):
                self._node[number], self._status[number] = node, Status.ORDERED
        self._mark(numbers_of(batch.running), Status.RUNNING)
        for failures in batch.failed:
            self._fail(numbers_of(failures.runs), failures.error)

    def state(self, batch: Batch) -> Batch:
        """`batch` brought up to date."""
        placed = []
        for node, group in groupby(range(len(self._node)), self._node.__getitem__):
            numbers = list(group)
            if node != _NOWHERE:
                placed.append((numbers[0], numbers[-1] + 1, node))
        failed = [
            Failures(error=orjson.loads(error), runs=runs_of(numbers))
            for error, numbers in self._failed.items()
        ]
        running = runs_of(self.numbers(Status.RUNNING))
        news = {"nodes": list(self._nodes), "placed": placed, "running": running, "failed": failed}
        return batch.model_copy(update={**news, "phase": self.phase(batch.phase)})

    def phase(self, former: Phase) -> Phase:
        """How far the batch is; it never goes back."""
        if not self.numbers(Status.UNPLACED, Status.ORDERED, Status.ACCEPTED):
            return Phase.DONE
        if former is Phase.PLACED or not self.numbers(Status.UNPLACED, Status.ORDERED):
            return Phase.PLACED
        return Phase.PLACING

    def numbers(self, *statuses: Status) -> list[int]:
        """The numbers of these statuses, in order."""
        wanted = frozenset(statuses)
        return [number for number, status in enumerate(self._status) if status in wanted]

    def node_of(self, number: int) -> str:
        """Where a number that has a node lies."""
        return self._nodes[self._node[number]]

    def unsettled(self) -> dict[str, list[int]]:
        """What each node is to be asked about."""
        asked: dict[str, list[int]] = defaultdict(list)
        for number in self.numbers(Status.ORDERED, Status.ACCEPTED):
            asked[self._nodes[self._node[number]]].append(number)
        return asked

    def assign(self, numbers: Iterable[int], node: str) -> None:
        """Lay unplaced numbers on a node; store the plan before ordering them."""
        if node not in self._nodes:
            self._nodes.append(node)
        at = self._nodes.index(node)
        for number in numbers:
            self._node[number], self._status[number] = at, Status.ORDERED

    def unassign(self, numbers: Iterable[int]) -> None:
        """Numbers that their node does not have, and will not."""
        for number in numbers:
            self._node[number], self._status[number] = _NOWHERE, Status.UNPLACED

    def fail(self, numbers: Iterable[int], error: DsecError) -> None:
        """Give numbers up."""
        self._fail(numbers, error.body())

    def fold(self, asked: Iterable[int], answer: NodeBatchAnswer, *, final: bool) -> None:
        """Take a node's answer in. `final`: ids do not change any more, so a veto is a failure."""
        self._mark(asked, Status.ACCEPTED)
        self._mark(numbers_of(answer.running), Status.RUNNING)
        for failures in answer.failed:
            self._fail(numbers_of(failures.runs), failures.error)
        vetoed = list(numbers_of(answer.vetoed))
        if final:
            self._fail(vetoed, {"code": "no_capacity", "failure": "infra", "message": answer.reason})
        else:
            self.unassign(vetoed)

    def _mark(self, numbers: Iterable[int], status: Status) -> None:
        for number in numbers:
            if self._status[number] != Status.FAILED:
                self._status[number] = status

    def _fail(self, numbers: Iterable[int], error: dict[str, Any]) -> None:
        fresh = [number for number in numbers if self._status[number] != Status.FAILED]
        if fresh:
            self._failed[self._kind(error)].update(fresh)
        for number in fresh:
            self._status[number] = Status.FAILED

    def _kind(self, error: dict[str, Any]) -> bytes:
        """The error as a key; past `_KINDS` different ones, that of one with the same code stands for it."""
        kind = orjson.dumps(error, option=orjson.OPT_SORT_KEYS)
        if kind in self._failed or len(self._failed) < _KINDS:
            return kind
        alike = (known for known in self._failed if orjson.loads(known)["code"] == error["code"])
        return next(alike, kind)
