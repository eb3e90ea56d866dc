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
from dataclasses import dataclass
from typing import Final, Protocol

from dsec.bus.errors import DsecError, InfraError
from dsec.bus.metrics.names import FREEZES
from dsec.bus.nats.directget import patiently
from dsec.bus.nodes import Kept, Nodes, joined
from dsec.bus.transport import Bus
from dsec.bus.workload import workload_of

log = logging.getLogger(__name__)

LOST: Final = "its node was away and was declared failed"
SOON: Final = 0.2
"""Seconds between questions of a node that is cut off."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: `probe` between questions, `freeze` without an answer."""

    probe: float = 2.0
    freeze: float = 45.0


DEFAULT: Final = Patience()


class Member(Protocol):
    """A node that is fenced. `fenced` is set by `Fencing`: its lives up to this one were declared failed."""

    fenced: int

    @property
    def name(self) -> str: ...

    @property
    def epoch(self) -> int:
        """The number of this life."""
        ...

    @property
    def open(self) -> asyncio.Event:
        """Set by `Fencing` while this life counts: requests are served and heartbeats told."""
        ...

    def __len__(self) -> int:
        """How many sandboxes it has."""
        ...

    async def outgrow(self, epoch: int) -> None:
        """This life is `epoch` from now on, never less than it was; durable on return. Raises InfraError."""
        ...

    async def hold(self) -> None:
        """Nothing inside runs any more; repeated for what came or was thawed meanwhile."""
        ...

    async def lose_fenced(self) -> None:
        """Destroy what carries an epoch up to `fenced`; repeated for what came meanwhile."""
        ...

    async def let_go(self) -> None:
        """Undo `hold`."""
        ...


class Fencing:
    """The lives of one node."""

    def __init__(self, bus: Bus, member: Member, patience: Patience = DEFAULT) -> None:
        self._bus = bus
        self._member = member
        self._patience = patience
        self._nodes = Nodes(bus)
        self._contact = _clock()

    async def join(self) -> None:
        """Begin a life; nothing is to be taken over of one up to `fenced`. Raises BrokerDown, InfraError."""
        await self._begin(self._member.epoch)
        self._member.open.set()

    async def keep(self) -> None:
        """Ask, freeze and return, for as long as the node runs."""
        while True:
            await asyncio.sleep(self._pause())
            asked = _clock()
            try:
                kept = await self._nodes.get(self._member.name, timeout=self._patience.probe)
                await self._judge(kept, asked)
            except InfraError as error:
                if _clock() - self._contact >= self._patience.freeze:
                    await self._freeze(str(error))
            except DsecError:
                log.exception("fencing")

    def _pause(self) -> float:
        """A question is due every `probe` seconds, and no later than the freezing."""
        if not self._member.open.is_set() or not self._bus.connected:
            return min(SOON, self._patience.probe)
        left = self._contact + self._patience.freeze - _clock()
        return max(SOON / 10, min(self._patience.probe, left))

    async def _judge(self, kept: Kept | None, asked: float) -> None:
        """The leader's word on this life."""
        member, epoch = self._member, self._member.epoch
        if kept is not None and kept.entry.epoch > epoch:
            await self._freeze("a later life of this node is known: another process has its name")
        elif kept is None or kept.entry.fenced >= epoch or not member.open.is_set():
            await self._freeze("its life was declared failed")
            await self._begin(epoch + 1)
            await self._return()
        else:
            self._contact = asked
            await member.lose_fenced()

    async def _begin(self, epoch: int) -> None:
        """Have a life of `epoch` or later entered; the journal knows it first, so none is had twice."""
        member = self._member
        while True:
            asked = _clock()
            kept = await patiently(lambda: self._nodes.get(member.name, timeout=self._patience.probe))
            entry = joined(kept.entry if kept else None, member.name, epoch, int(time.time() * 1000))
            await member.outgrow(entry.epoch)
            if await self._nodes.put(entry, kept.revision if kept else 0):
                member.fenced, self._contact = entry.fenced, asked
                return

    async def _freeze(self, why: str) -> None:
        """Nothing inside runs, no heartbeat is told; repeated for what came or was thawed meanwhile."""
        member = self._member
        if member.open.is_set():
            log.error("%s freezes its %d sandboxes: %s", member.name, len(member), why)
            workload_of(self._bus).figures.count(FREEZES)
            member.open.clear()
        await member.hold()

    async def _return(self) -> None:
        member = self._member
        await member.lose_fenced()
        await member.let_go()
        log.warning("%s is back as life %d with %d sandboxes", member.name, member.epoch, len(member))
        member.open.set()


def _clock() -> float:
    """Seconds that go on while the machine is suspended, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
