"""How sandboxes end: destroyed on request or when their time is up, failed when their inside died.

A destroy is acknowledged when nothing is left on the node; it is in the journal before the first step, so a
restarted node finishes it; a disk too full for that is freed first. A failed sandbox loses its processes at
once and keeps its record and its writable layer until it is destroyed.
"""

from __future__ import annotations

import asyncio
import logging

from dsec.bus import subjects
from dsec.bus.driver import Death
from dsec.bus.errors import DsecError, InfraError, NoSuchSandbox
from dsec.bus.handlers import ok
from dsec.bus.messages import Record, State
from dsec.plugins.edge import figures
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.sandboxes import Sandbox

_DEAD = {State.FAILED, State.STOPPED, State.STARTING}
"""There is nothing inside that could die, or whoever starts it hears of it."""
log = logging.getLogger(__name__)


def gone_key(project: str, sandbox: str) -> str:
    """Under which the journal keeps the answer to a destroy: repeating it is answered alike."""
    return f"{project}/destroy/{sandbox}"


class Ending:
    """Ends sandboxes of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def destroy(self, sandbox: Sandbox, reason: str = "") -> None:
        """Nothing is left afterwards; those who ask meanwhile wait for the same end. Raises InfraError."""
        if sandbox.ending is None:
            work = self._destroy(sandbox, reason)
            sandbox.ending = self._node.tasks.spawn(work, f"destroy of {sandbox.id}")
            if sandbox.ending is None:
                raise NoSuchSandbox("the node is stopping; the sandbox lives on")
            sandbox.ending.add_done_callback(lambda task: _ended(sandbox, task))
        await asyncio.shield(sandbox.ending)

    async def lose(self, sandbox: Sandbox, reason: str) -> None:
        """It was declared failed while the node was away: nothing is left of it. Raises InfraError."""
        log.warning("%s is destroyed: %s", sandbox.id, reason)
        sandbox.lost = True
        await self.destroy(sandbox, reason)

    async def bury(self, record: Record, reason: str) -> None:
        """Nothing of it is left on the node: have that known, and audited."""
        node = self._node
        await node.sandboxes.bury(record, reason)
        who = subjects.Address("sandbox", "lose", record.project, record.principal)
        where = subjects.node_heartbeat(node.name)
        node.auditor.note(who, where, outcome="ok", target=record.sandbox, detail=reason)

    async def destroyed(self, sandbox: str, project: str) -> bytes | None:
        """The answer to a repeated destroy, if there was one."""
        return await self._node.journal.answered(gone_key(project, sandbox))

    async def _destroy(self, sandbox: Sandbox, reason: str) -> None:
        node = self._node
        sandbox.doomed = True
        await sandbox.give_up()
        try:
            await node.journal.destroying(sandbox.id)
        except InfraError as error:  # a full disk is no reason to keep what fills it
            log.warning("%s is destroyed all the same: %s", sandbox.id, error)
        if sandbox.lost:
            sandbox.forsake()
        else:
            sandbox.end()
        await self.sweep(sandbox.id, sandbox.handle.driver)
        if sandbox.lost:
            await self.bury(sandbox.record, reason)
            return
        record = sandbox.record.model_copy(update={"state": State.DESTROYED, "reason": reason})
        await node.journal.forget(sandbox.id, gone_key(record.project, record.sandbox), ok())
        node.sandboxes.remove(sandbox.id)
        node.sandboxes.publish(record, "destroyed")

    async def sweep(self, sandbox: str, driver: str | None = None) -> None:
        """Take everything of a sandbox off the node, whatever is there; repeatable."""
        node = self._node
        for name, one in node.drivers.items():
            if driver in {None, name}:
                await one.destroy(sandbox)
        await node.images.release(sandbox)
        node.forget(sandbox)

    async def fail(self, death: Death) -> None:
        """The inside died: end what is left of it, keep record and writable layer. Repeatable."""
        sandbox = self._node.sandboxes.find(death.sandbox)
        if sandbox is None or sandbox.doomed or sandbox.record.state in _DEAD:
            return
        log.warning("%s failed (%s): %s", sandbox.id, death.failure.value, death.reason)
        figures.failed(self._node, sandbox.record, death.failure)
        await self._node.sandboxes.fail(sandbox, death.failure, death.reason)
        sandbox.end()
        await sandbox.driver.destroy(sandbox.id)

    async def drain(self) -> None:
        """Take nothing new and destroy all sandboxes; one that cannot be is left to the next start."""
        self._node.draining = True
        await asyncio.gather(*self._node.creating.values(), return_exceptions=True)
        outcomes = await asyncio.gather(
            *(self.destroy(sandbox, "the node was drained") for sandbox in self._node.sandboxes),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, DsecError):
                log.error("drain: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome


def _ended(sandbox: Sandbox, task: asyncio.Task[None]) -> None:
    if task.cancelled() or task.exception() is not None:
        sandbox.ending = None  # it may be tried again, and is after a restart
