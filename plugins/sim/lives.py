"""The lives of a simulated node: it is fenced as a real one is (`bus.fencing`, docs/adr/0007-fencing.md).

Frozen, it answers nobody, nothing in it begins, ends or dies, and no heartbeat is told. What was declared
failed is lost when the node returns: nothing is left of it, and who asks hears so. A life is in the journal
before it is entered in the table of nodes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from dsec.bus import subjects
from dsec.bus.fencing import LOST
from dsec.bus.messages import Record
from dsec.bus.registrar import tombstone
from dsec.plugins.sim import journal as lines

if TYPE_CHECKING:
    from dsec.plugins.sim.books import Held
    from dsec.plugins.sim.node import SimNode

log = logging.getLogger(__name__)

AT_ONCE = 100
"""Sandboxes that are lost before others have their turn."""


class Lives:
    """`bus.fencing.Member` of one simulated node."""

    def __init__(self, node: SimNode, journal: lines.Journal, past: lines.Past) -> None:
        self._node = node
        self._journal = journal
        self._swept = 0
        self.epoch = max(journal.epoch, past.epoch)
        self.fenced = 0
        self.open = asyncio.Event()

    @property
    def name(self) -> str:
        return self._node.node

    def __len__(self) -> int:
        return self._node.sandboxes

    async def outgrow(self, epoch: int) -> None:
        """See Member. Raises DiskFull, InfraError."""
        await self._journal.append(lines.life(self.name, epoch))
        self.epoch = max(self.epoch, epoch)

    async def hold(self) -> None:
        """Whatever happens inside waits for `open`."""

    async def let_go(self) -> None:
        """`open` is what it takes."""

    async def lose_fenced(self) -> None:
        """Of a life that was swept nothing comes up any more: a late create looks for itself."""
        if self._swept == self.fenced:
            return
        fenced = self.fenced
        doomed = [held for held in self._node.books.table.values() if held.epoch <= fenced]
        for at in range(0, len(doomed), AT_ONCE):
            await asyncio.gather(*(self.lose(held) for held in doomed[at : at + AT_ONCE]))
        self._swept = fenced

    async def lose(self, held: Held) -> None:
        """It was declared failed: nothing is left of it, known and audited. Raises DiskFull, InfraError."""
        node = self._node
        log.warning("%s is destroyed: %s", held.id, LOST)
        await self._journal.append(lines.lost(self.name, held.id, held.project))
        node.books.lose(held)
        record = Record.model_validate_json(held.record)
        node.registrar.put(tombstone(record, LOST))
        who = subjects.Address("sandbox", "lose", record.project, record.principal)
        where = subjects.node_heartbeat(self.name)
        node.auditor.note(who, where, outcome="ok", target=held.id, detail=LOST)
