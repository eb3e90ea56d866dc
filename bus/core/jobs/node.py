"""A node's side of batches: starts what it is asked for, and tells how far each number is.

Orders are repeatable: a number that is under way is waited for, one that was created is told as running, one
that failed stays failed. What a node has no room for is vetoed before any work, so that it goes elsewhere.
What it accepted and has not created when it first answers is told as PENDING, so that every id can be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson

from dsec.bus import ids, subjects
from dsec.bus.core.jobs.messages import Failures, NodeBatch, NodeBatchAnswer
from dsec.bus.core.jobs.runs import numbers_of, runs_of
from dsec.bus.core.jobs.template import overridden
from dsec.bus.errors import Cancelled, DsecError, InfraError, NoCapacity
from dsec.bus.handlers import decode, in_time, ok, serving_internal
from dsec.bus.transport import Bus, Received

log = logging.getLogger(__name__)

KEPT: Final = 600.0
"""Seconds for which a batch that nobody asks about is remembered."""


@dataclass(frozen=True, slots=True)
class Item:
    """One sandbox of a batch; `spec` is whole and parsed before, `deadline` unix ms until it may begin."""

    op: str
    project: str
    principal: str
    sandbox: str
    spec: dict[str, Any]
    deadline: int


class Maker(Protocol):
    """What makes sandboxes on this node."""

    async def make(self, item: Item) -> None:
        """Create it; repeatable by `item.op`. Raises NoCapacity before any work, or what it failed of."""
        ...

    async def made(self, item: Item) -> bool:
        """Whether it was created, if only by a former process of the node."""
        ...

    def abandon(self, item: Item) -> bool:
        """Whether its create has not begun, and will not: `make` is cancelled."""
        ...

    def pending(self, item: Item) -> None:
        """Tell registry and readers that it is accepted."""
        ...

    def failed(self, item: Item, error: DsecError) -> None:
        """Tell registry and readers that it will not come."""
        ...


@dataclass(slots=True)
class _Entry:
    item: Item
    making: asyncio.Task[None] | None = None
    error: DsecError | None = None
    told: bool = False
    cancelled: bool = False

    @property
    def pending(self) -> bool:
        return self.making is not None and not self.making.done()


@dataclass(slots=True)
class _Part:
    """What this node has of one batch."""

    job: str
    entries: dict[int, _Entry] = field(default_factory=dict)
    asked: float = 0.0


class Batches:
    """Answers node.batch; made by `running`."""

    def __init__(self, node: str, maker: Maker) -> None:
        self._node = node
        self._maker = maker
        self._parts: dict[tuple[str, str], _Part] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus, node: str, maker: Maker) -> AsyncIterator[Batches]:
        """Serve while the block runs; creates under way end with it."""
        batches = cls(node, maker)
        try:
            async with serving_internal(bus, subjects.node_batch(node), batches.answer):
                yield batches
        finally:
            await batches._end()

    def cancel(self, project: str, job: str) -> int:
        """Begin no more of the job, and abandon what is under way; how many those are."""
        under_way = [
            entry
            for (owner, _), part in self._parts.items()
            if owner == project and part.job == job
            for entry in part.entries.values()
            if entry.pending
        ]
        for entry in under_way:
            self._abandon(entry)
        return len(under_way)

    async def answer(self, message: Received) -> bytes:
        """How far each number of the order is. Raises DeadlineExceeded, SpecError."""
        order = decode(NodeBatch, message.data)
        in_time(order)
        self._forget_old()
        part = self._parts.setdefault((order.project, order.op), _Part(order.job))
        part.asked = time.monotonic()
        numbers = list(numbers_of(order.runs))
        begin = self._refuse if order.cancel else self._begin
        for number in numbers:
            await begin(part, order, number)
        under_way = [making for number in numbers if (making := part.entries[number].making) is not None]
        if under_way:
            await asyncio.wait(under_way, timeout=order.wait)
        return ok(self._told(part, numbers))

    async def _begin(self, part: _Part, order: NodeBatch, number: int) -> None:
        if number not in part.entries:
            entry = part.entries[number] = _Entry(item_of(self._node, order, number))
            entry.making = asyncio.create_task(self._make(entry))

    async def _refuse(self, part: _Part, order: NodeBatch, number: int) -> None:
        """The batch is cancelled: what is not created is not any more."""
        entry = part.entries.get(number)
        if entry is None:
            entry = part.entries[number] = _Entry(item_of(self._node, order, number))
            if not await self._maker.made(entry.item):
                self._fail(entry, Cancelled("the batch was cancelled"))
        elif entry.pending:
            self._abandon(entry)

    def _abandon(self, entry: _Entry) -> None:
        if entry.making is not None and self._maker.abandon(entry.item):
            entry.cancelled = True
            entry.making.cancel()

    async def _make(self, entry: _Entry) -> None:
        try:
            await self._maker.make(entry.item)
        except NoCapacity as error:
            entry.error = error
        except DsecError as error:
            self._fail(entry, error)
        except asyncio.CancelledError:
            if not entry.cancelled:
                raise
            self._fail(entry, Cancelled("the batch was cancelled"))
        except Exception:
            log.exception("creating %s", entry.item.sandbox)
            self._fail(entry, InfraError("internal error of the node; its log has the traceback"))

    def _fail(self, entry: _Entry, error: DsecError) -> None:
        entry.error = error
        self._maker.failed(entry.item, error)

    def _told(self, part: _Part, numbers: list[int]) -> NodeBatchAnswer:
        running, vetoed, reason = [], [], ""
        failed: dict[bytes, list[int]] = {}
        for number in numbers:
            entry = part.entries.get(number)
            if entry is None:
                continue  # vetoed to somebody who asked at the same time: asked again, it is tried afresh
            if entry.pending:
                self._accepted(entry)
            elif isinstance(entry.error, NoCapacity):
                vetoed.append(number)
                reason = entry.error.message
                del part.entries[number]  # should it come again, it is tried afresh
            elif entry.error is not None:
                failed.setdefault(orjson.dumps(entry.error.body()), []).append(number)
            else:
                running.append(number)
        return NodeBatchAnswer(
            running=runs_of(running),
            vetoed=runs_of(vetoed),
            reason=reason,
            failed=[Failures(error=orjson.loads(error), runs=runs_of(of)) for error, of in failed.items()],
        )

    def _accepted(self, entry: _Entry) -> None:
        if not entry.told:
            entry.told = True
            self._maker.pending(entry.item)

    def _forget_old(self) -> None:
        before = time.monotonic() - KEPT
        for key, part in list(self._parts.items()):
            if part.asked < before and not any(entry.pending for entry in part.entries.values()):
                del self._parts[key]

    async def _end(self) -> None:
        tasks = [entry.making for part in self._parts.values() for entry in part.entries.values()]
        under_way = [task for task in tasks if task is not None and not task.done()]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


def item_of(node: str, order: NodeBatch, number: int) -> Item:
    """Number `number` of the order."""
    override = order.overrides.get(number)
    return Item(
        op=ids.operation_of(order.op, number),
        project=order.project,
        principal=order.principal,
        sandbox=ids.sandbox_of(node, order.project, order.op, number),
        spec=order.spec if override is None else overridden(order.spec, override),
        deadline=order.begin_by,
    )
