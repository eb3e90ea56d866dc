"""Fencing: a node that has lost the broker stops its sandboxes before others may take them for dead.

The node reads its own entry of the table of nodes (`bus.nodes`) from the stream's leader every few seconds.
After `freeze` seconds without an answer, counted from when the last answered question was sent, it freezes
what runs and tells no heartbeats; requests wait. When the broker answers again, one compare-and-set decides:
the node begins a new life, or finds its former one declared failed. What failed is destroyed, all else thaws.
The watcher waits longer than `freeze`, so what it declares failed does not run (docs/adr/0007-fencing.md).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Final

from dsec.bus.errors import DsecError, InfraError
from dsec.bus.metrics.names import FREEZES
from dsec.bus.nats.directget import patiently
from dsec.bus.nodes import Kept, Nodes, joined
from dsec.plugins.edge.ending import LOST, Ending
from dsec.plugins.edge.figures import figures_of
from dsec.plugins.edge.freezing import hold, let_go
from dsec.plugins.edge.node import Node

log = logging.getLogger(__name__)

SOON: Final = 0.2
"""Seconds between questions of a node that is cut off."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: `probe` between questions, `freeze` without an answer."""

    probe: float = 2.0
    freeze: float = 45.0


DEFAULT: Final = Patience()


class Fencing:
    """The lives of one node."""

    def __init__(self, node: Node, ending: Ending, patience: Patience = DEFAULT) -> None:
        self._node = node
        self._ending = ending
        self._patience = patience
        self._nodes = Nodes(node.bus)
        self._contact = _clock()

    async def join(self) -> None:
        """Begin a life; nothing of a failed one is taken over. Raises BrokerDown, InfraError."""
        node = self._node
        await self._begin(node.journal.epoch)
        await node.sandboxes.remember_lost()
        node.open.set()

    async def keep(self) -> None:
        """Ask, freeze and return, for as long as the node runs."""
        while True:
            await asyncio.sleep(self._pause())
            asked = _clock()
            try:
                kept = await self._nodes.get(self._node.name, timeout=self._patience.probe)
                await self._judge(kept, asked)
            except InfraError as error:
                if _clock() - self._contact >= self._patience.freeze:
                    await self._freeze(str(error))
            except DsecError:
                log.exception("fencing")

    def _pause(self) -> float:
        """A question is due every `probe` seconds, and no later than the freezing."""
        if not self._node.open.is_set() or not self._node.bus.connected:
            return min(SOON, self._patience.probe)
        left = self._contact + self._patience.freeze - _clock()
        return max(SOON / 10, min(self._patience.probe, left))

    async def _judge(self, kept: Kept | None, asked: float) -> None:
        """The leader's word on this life."""
        node, epoch = self._node, self._node.journal.epoch
        if kept is not None and kept.entry.epoch > epoch:
            await self._freeze("a later life of this node is known: another process has its name")
        elif kept is None or kept.entry.fenced >= epoch or not node.open.is_set():
            await self._freeze("its life was declared failed")
            await self._begin(epoch + 1)
            await self._return()
        else:
            self._contact = asked
            await self._lose_fenced()

    async def _begin(self, epoch: int) -> None:
        """Have a life of `epoch` or later entered; the journal knows it first, so none is had twice."""
        node = self._node
        while True:
            asked = _clock()
            kept = await patiently(lambda: self._nodes.get(node.name, timeout=self._patience.probe))
            entry = joined(kept.entry if kept else None, node.name, epoch, int(time.time() * 1000))
            await node.journal.outgrow(entry.epoch)
            if await self._nodes.put(entry, kept.revision if kept else 0):
                node.fenced, self._contact = entry.fenced, asked
                return

    async def _freeze(self, why: str) -> None:
        """Nothing inside runs, no heartbeat is told; repeated for what came or was thawed meanwhile."""
        node = self._node
        if node.open.is_set():
            log.error("%s freezes its %d sandboxes: %s", node.name, len(node.sandboxes), why)
            figures_of(node).count(FREEZES)
            node.open.clear()
        await _each(hold(sandbox) for sandbox in node.sandboxes)

    async def _return(self) -> None:
        node = self._node
        await self._lose_fenced()
        await _each(let_go(sandbox) for sandbox in node.sandboxes)
        log.warning(
            "%s is back as life %d with %d sandboxes", node.name, node.journal.epoch, len(node.sandboxes)
        )
        node.open.set()
        node.sandboxes.changed.set()

    async def _lose_fenced(self) -> None:
        """Destroy what was declared failed. What cannot be destroyed now is tried again by the reaper."""
        node = self._node
        doomed = [one for one in node.sandboxes if one.record.epoch <= node.fenced and not one.lost]
        await _each(self._ending.lose(sandbox, LOST) for sandbox in doomed)


async def _each(works: Iterable[Coroutine[None, None, None]]) -> None:
    """All of them; one that fails is logged and keeps no other from its turn."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, DsecError):
            log.error("%s", outcome)
        elif isinstance(outcome, BaseException):
            raise outcome


def _clock() -> float:
    """Seconds that go on while the machine is suspended, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
