"""Batches and jobs on this node: made, frozen and ended as single sandboxes are.

What a batch was promised and is not there yet has a record of its own, PENDING or FAILED, so that every id of
an acknowledged batch can be read. Such a record is told to registry and readers, and kept in memory only: a
core that carries the batch on asks again, and a restarted node begins afresh what it had not created.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from dsec.bus import subjects
from dsec.bus.core.jobs.members import JobOps
from dsec.bus.core.jobs.node import Batches, Item
from dsec.bus.errors import DsecError
from dsec.bus.messages import NodeCreate, Record, State
from dsec.bus.spec import Spec
from dsec.bus.transport import Bus
from dsec.plugins.edge import freezing
from dsec.plugins.edge.create import Creator
from dsec.plugins.edge.ending import Ending
from dsec.plugins.edge.node import Node

REMEMBERED: Final = 10_000
"""Records of what could not be created."""


class EdgeJobs:
    """`bus.core.jobs.node.Maker` and `bus.core.jobs.members.Members` of this node."""

    def __init__(self, node: Node, creator: Creator, ending: Ending) -> None:
        self._node = node
        self._creator = creator
        self._ending = ending
        self._batches: Batches

    @contextlib.asynccontextmanager
    async def serving(self, bus: Bus) -> AsyncIterator[None]:
        """Answer node.batch and node.op while the block runs."""
        name = self._node.name
        async with Batches.running(bus, name, self) as self._batches, JobOps.running(bus, name, self):
            yield

    # --- Maker

    async def make(self, item: Item) -> None:
        try:
            await self._creator.create(order_of(item))
        except DsecError as error:
            self._audit(item, error.code, error.message)
            raise
        finally:
            self._node.coming.pop(item.sandbox, None)
        self._audit(item, "ok")

    async def made(self, item: Item) -> bool:
        return await self._node.journal.answered(f"{item.project}/create/{item.op}") is not None

    def abandon(self, item: Item) -> bool:
        return self._creator.abandon(item.project, item.op)

    def pending(self, item: Item) -> None:
        self._tell(item, State.PENDING)

    def failed(self, item: Item, error: DsecError) -> None:
        now = int(time.time() * 1000)
        self._tell(item, State.FAILED, failure=error.failure, reason=error.message, expires=now)

    def _tell(self, item: Item, state: State, **fields: Any) -> None:
        node, order = self._node, order_of(item)
        record = self._creator.record(order, order.spec.limits, node.journal.epoch)
        record = record.model_copy(update={"state": state, **fields})
        node.coming[item.sandbox] = record
        if len(node.coming) > REMEMBERED:
            _forget_oldest(node.coming)
        node.sandboxes.publish(record, state.value)

    def _audit(self, item: Item, outcome: str, detail: str = "") -> None:
        who = subjects.Address("sandbox", "create", item.project, item.principal)
        where = subjects.node_batch(self._node.name)
        self._node.auditor.note(who, where, outcome=outcome, target=item.sandbox, detail=detail)

    # --- Members

    def of_job(self, project: str, job: str) -> list[str]:
        records = [sandbox.record for sandbox in self._node.sandboxes]
        return [one.sandbox for one in records if one.spec.job == job and one.project == project]

    def state(self, sandbox: str) -> State | None:
        found = self._node.sandboxes.find(sandbox)
        return None if found is None else found.record.state

    def cancel(self, project: str, job: str) -> int:
        return self._batches.cancel(project, job)

    async def pause(self, sandbox: str) -> None:
        found = self._node.sandboxes.find(sandbox)
        if found is not None and found.record.state in {State.RUNNING, State.PAUSED}:
            await freezing.pause(found, self._node.sandboxes, held=True)

    async def resume(self, sandbox: str) -> None:
        found = self._node.sandboxes.find(sandbox)
        if found is not None and found.record.state is State.PAUSED:
            await freezing.resume(found, self._node.sandboxes)

    async def kill(self, sandbox: str) -> None:
        found = self._node.sandboxes.find(sandbox)
        if found is not None:
            await self._ending.destroy(found, "its job was killed")


def order_of(item: Item) -> NodeCreate:
    """The create of one sandbox of a batch."""
    return NodeCreate(
        op=item.op,
        deadline=item.deadline,
        project=item.project,
        principal=item.principal,
        sandbox=item.sandbox,
        spec=Spec.model_validate(item.spec),
    )


def _forget_oldest(coming: dict[str, Record]) -> None:
    oldest = next((one for one, record in coming.items() if record.state is State.FAILED), None)
    if oldest is not None:
        del coming[oldest]
