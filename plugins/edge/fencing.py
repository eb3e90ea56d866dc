"""Fencing a node of real sandboxes: `bus.fencing` decides, this freezes, thaws and destroys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable

from dsec.bus import fencing
from dsec.bus.errors import DsecError
from dsec.bus.fencing import DEFAULT, LOST, Patience
from dsec.plugins.edge.ending import Ending
from dsec.plugins.edge.freezing import hold, let_go
from dsec.plugins.edge.node import Node

__all__ = ["DEFAULT", "Fencing", "Patience"]

log = logging.getLogger(__name__)


class Fencing(fencing.Fencing):
    """The lives of one node."""

    def __init__(self, node: Node, ending: Ending, patience: Patience = DEFAULT) -> None:
        super().__init__(node.bus, Fenced(node, ending), patience)
        self._sandboxes = node.sandboxes

    async def join(self) -> None:
        await self._sandboxes.remember_lost()
        await super().join()


class Fenced:
    """`bus.fencing.Member` over the node."""

    def __init__(self, node: Node, ending: Ending) -> None:
        self._node = node
        self._ending = ending

    @property
    def name(self) -> str:
        return self._node.name

    @property
    def epoch(self) -> int:
        return self._node.journal.epoch

    @property
    def open(self) -> asyncio.Event:
        return self._node.open

    @property
    def fenced(self) -> int:
        return self._node.fenced

    @fenced.setter
    def fenced(self, epoch: int) -> None:
        self._node.fenced = epoch

    def __len__(self) -> int:
        return len(self._node.sandboxes)

    async def outgrow(self, epoch: int) -> None:
        await self._node.journal.outgrow(epoch)

    async def hold(self) -> None:
        await _each(hold(sandbox) for sandbox in self._node.sandboxes)

    async def let_go(self) -> None:
        await _each(let_go(sandbox) for sandbox in self._node.sandboxes)
        self._node.sandboxes.changed.set()

    async def lose_fenced(self) -> None:
        """What cannot be destroyed now is tried again by the reaper."""
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
