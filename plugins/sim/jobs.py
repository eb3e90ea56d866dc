"""Batches and jobs on a simulated node: made and ended as single sandboxes are."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from dsec.bus.core.jobs.members import JobOps
from dsec.bus.core.jobs.node import Batches, Item
from dsec.bus.errors import DsecError
from dsec.bus.messages import State
from dsec.bus.transport import Bus
from dsec.plugins.sim.books import applied
from dsec.plugins.sim.journal import packed

if TYPE_CHECKING:
    from dsec.plugins.sim.node import SimNode


class SimJobs:
    """`bus.core.jobs.node.Maker` and `bus.core.jobs.members.Members` of one simulated node."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._batches: Batches
        self.coming: dict[str, tuple[str, bytes]] = {}
        """Project and record of what batches were promised and is not created yet, or could not be."""

    @contextlib.asynccontextmanager
    async def serving(self, bus: Bus) -> AsyncIterator[None]:
        """Answer node.batch and node.op while the block runs."""
        name = self._node.node
        async with Batches.running(bus, name, self) as self._batches, JobOps.running(bus, name, self):
            yield

    # --- Maker

    async def make(self, item: Item) -> None:
        key = _key(item)
        if self._node.books.answer(key) is None:
            order = {"op": item.op, "project": item.project, "principal": item.principal}
            try:
                await self._node.creates.once(order | {"sandbox": item.sandbox, "spec": item.spec}, key)
            finally:
                self.coming.pop(item.sandbox, None)

    async def made(self, item: Item) -> bool:
        return self._node.books.answer(_key(item)) is not None

    def abandon(self, item: Item) -> bool:
        return _key(item) in self._node.creates.waiting

    def pending(self, item: Item) -> None:
        self._tell(item, State.PENDING)

    def failed(self, item: Item, error: DsecError) -> None:
        now = int(time.time() * 1000)
        told = {"project": item.project, "principal": item.principal, "sandbox": item.sandbox}
        self._node.creates.note(told, error.code, error.message)
        self._tell(item, State.FAILED, failure=error.failure.value, reason=error.message, changed=now)

    def _tell(self, item: Item, state: State, **fields: Any) -> None:
        """A record without a sandbox; a failed one is remembered for as long as a destroyed one."""
        node, now = self._node, int(time.time() * 1000)
        body = {
            "sandbox": item.sandbox,
            "project": item.project,
            "principal": item.principal,
            "node": node.node,
            "epoch": node.lives.epoch,
            "state": state.value,
            "spec": item.spec,
            "applied": applied(item.spec["limits"], node.books.config.defaults),
            "created": now,
            "expires": now + int(item.spec["ttl"] * 1000),
        }
        record = packed(body | fields)
        self.coming[item.sandbox] = item.project, record
        node.tell(body, state.value, record, gone=state is State.FAILED)

    # --- Members

    def of_job(self, project: str, job: str) -> list[str]:
        table = self._node.books.table.values()
        return [held.id for held in table if held.job == job and held.project == project]

    def state(self, sandbox: str) -> State | None:
        held = self._node.books.table.get(sandbox)
        return None if held is None else held.state

    def cancel(self, project: str, job: str) -> int:
        return self._batches.cancel(project, job)

    async def pause(self, sandbox: str) -> None:
        held = self._node.books.table.get(sandbox)
        if held is not None and held.state is State.RUNNING:
            await self._node.switch(held, "pause", State.PAUSED)

    async def resume(self, sandbox: str) -> None:
        held = self._node.books.table.get(sandbox)
        if held is not None and held.state is State.PAUSED:
            await self._node.switch(held, "resume", State.RUNNING)

    async def kill(self, sandbox: str) -> None:
        held = self._node.books.table.get(sandbox)
        if held is not None:
            await self._node.trial("destroy")
            await self._node.end(held, "its job was killed")


def _key(item: Item) -> str:
    return f"{item.project}/create/{item.op}"
