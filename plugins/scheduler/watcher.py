"""The watcher: declares nodes dead that were silent for too long, and has their sandboxes marked failed.

Runs beside each scheduler. All watchers watch; what they decide goes through one compare-and-set on the
node's entry (`bus.nodes`), so one of them acts. The others take over what it left unfinished, and nothing is
done twice. A node that returns and begins a new life before that write has won, and is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Final

from dsec.bus import ids, subjects
from dsec.bus.audit import Auditor
from dsec.bus.errors import DsecError, GoneError
from dsec.bus.handlers import decode, in_time, ok, serving_internal
from dsec.bus.messages import FailNode, Fleet, Heartbeat, NodeStatus, Standing
from dsec.bus.metrics import names
from dsec.bus.metrics.figures import Sample
from dsec.bus.nats.appender import Appender
from dsec.bus.nats.directget import DirectGet
from dsec.bus.nodes import Kept, NodeEntry, Nodes, failed
from dsec.bus.transport import Bus, Received
from dsec.bus.workload import workload_of
from dsec.plugins.scheduler.silence import DEFAULT, Patience, Silence, allowed
from dsec.plugins.scheduler.sweep import Sweep

log = logging.getLogger(__name__)

QUEUE: Final = "watcher"
REFRESH: Final = 5.0
"""Seconds between reads of the table."""
TAKE_OVER: Final = 10.0
"""Seconds after which what another watcher has not finished is done here."""


class Watcher:
    """See the module. Made by `running`; `name` tells it from the others."""

    def __init__(self, bus: Bus, reader: DirectGet, appender: Appender, patience: Patience) -> None:
        self.name = f"watcher-{ids.tail(6)}"
        self.held: frozenset[str] = frozenset()
        """Nodes that are due, and too many at once: they wait for the operator's word."""
        self._bus = bus
        self._nodes = Nodes(bus)
        self._reader = reader
        self._sweep = Sweep(bus, reader, appender)
        self._auditor = Auditor(appender, "scheduler")
        self._patience = patience
        self._silence = Silence(patience)
        self._kept: dict[str, Kept] = {}
        self._beats: dict[str, tuple[Heartbeat, int]] = {}
        self._refreshed = float("-inf")
        self._looked = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus, patience: Patience = DEFAULT) -> AsyncIterator[Watcher]:
        """Watch while the block runs."""
        async with contextlib.AsyncExitStack() as stack:
            appender = await stack.enter_async_context(Appender.running(bus))
            reader = await stack.enter_async_context(DirectGet.running(bus))
            watcher = cls(bus, reader, appender, patience)
            heartbeats = await bus.subscribe(subjects.ALL_HEARTBEATS, watcher.heard)
            stack.push_async_callback(heartbeats.unsubscribe)
            for subject, handler in (
                (subjects.SCHED_FLEET, watcher.fleet),
                (subjects.SCHED_FAIL, watcher.fail),
            ):
                await stack.enter_async_context(serving_internal(bus, subject, handler, queue=QUEUE))
            stack.enter_context(workload_of(bus).figures.telling(watcher._samples))
            watching = asyncio.create_task(watcher._watch(), name=watcher.name)
            try:
                yield watcher
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    # --- what is heard and asked

    def heard(self, message: Received) -> None:
        """A heartbeat of a life that is not over; others are the last words of a dead one."""
        with contextlib.suppress(DsecError):  # the scheduler logs what cannot be read
            beat = decode(Heartbeat, message.data)
            kept = self._kept.get(beat.node)
            if subjects.node_heartbeat(beat.node) != message.subject:
                return
            if kept is None or beat.epoch > kept.entry.fenced:
                self._beats[beat.node] = beat, beat.time - _now()
                self._silence.heard(beat.node)

    async def fleet(self, _: Received) -> bytes:
        """Every node of the table; a fresh watcher reads it first."""
        await self._looked.wait()
        return ok(Fleet(nodes=[self._status(kept.entry) for _, kept in sorted(self._kept.items())]))

    async def fail(self, message: Received) -> bytes:
        """The operator's word: the node is failed now, however many are. Raises GoneError."""
        request = decode(FailNode, message.data)
        in_time(request)
        kept = await self._nodes.get(request.node, timeout=2.0)
        if kept is None:
            raise GoneError(f"there is no node {request.node}", field="node")
        self._kept[request.node] = kept
        if kept.entry.alive:
            kept = await self._declare(kept, request.reason)
        await self._finish(kept)
        return ok(self._status(self._kept[request.node].entry))

    def _samples(self) -> Iterator[Sample]:
        """See Figures.telling."""
        known = [self._status(kept.entry) for kept in self._kept.values()]
        standings = Counter(one.standing.value for one in known)
        for standing in Standing:
            yield names.NODES, (standing.value,), standings[standing.value]
        yield names.NODES, ("held",), len(self.held)
        for one in known:
            if one.standing is not Standing.FAILED:
                yield names.NODE_SILENT, (one.node,), one.silent
                yield names.NODE_CLOCK, (one.node,), one.offset / 1000

    def _status(self, entry: NodeEntry) -> NodeStatus:
        beat, offset = self._beats.get(entry.node, (None, 0))
        suspect = self._silence.suspect(entry.node)
        standing = Standing.SUSPECT if suspect else Standing.ALIVE
        return NodeStatus(
            node=entry.node,
            standing=standing if entry.alive else Standing.FAILED,
            epoch=entry.epoch,
            fenced=entry.fenced,
            silent=round(self._silence.of(entry.node), 1),
            held=entry.node in self.held,
            sandboxes=beat.sandboxes if beat else 0,
            draining=bool(beat and beat.draining),
            offset=offset,
            reason=entry.reason,
        )

    # --- the watch

    async def _watch(self) -> None:
        while True:
            now = time.monotonic()
            self._silence.tick(now, connected=self._bus.connected)
            if self._bus.connected:
                try:
                    await self._look(now)
                except DsecError as error:
                    log.warning("%s: %s; trying again", self.name, error)
            await asyncio.sleep(self._patience.tick)

    async def _look(self, now: float) -> None:
        if now - self._refreshed >= REFRESH:
            self._kept = await self._nodes.all(self._reader)
            self._refreshed = now
        await self._note_lives()
        self._silence.know(node for node, kept in self._kept.items() if kept.entry.alive)
        self._looked.set()
        await self._fail_due()
        for kept in list(self._kept.values()):
            if kept.entry.swept < kept.entry.fenced and self._mine(kept.entry):
                await self._finish(kept)

    async def _note_lives(self) -> None:
        """A node that does not write its own entry is entered as its heartbeats tell."""
        for node, (beat, _) in list(self._beats.items()):
            kept = self._kept.get(node)
            if kept is None or beat.epoch > kept.entry.epoch:
                entry = kept.entry if kept else NodeEntry(node=node, epoch=0, since=0)
                newer = entry.model_copy(update={"epoch": beat.epoch, "since": _now()})
                await self._put(newer, kept.revision if kept else 0)

    async def _fail_due(self) -> None:
        due = self._silence.due()
        after = _now() - int(self._patience.window * 1000)
        entries = [kept.entry for kept in self._kept.values()]
        lately = sum(entry.failed > after for entry in entries)
        nodes = sum(entry.alive or entry.failed > after for entry in entries)
        chosen = allowed(due, silent=self._silence.suspects(), nodes=nodes, lately=lately)
        held = frozenset(due) - frozenset(chosen)
        if held and held != self.held:
            log.error("%d nodes are silent: that many at once need the operator's word: %s", len(held), held)
        self.held = held
        for node in chosen:
            kept = await self._declare(self._kept[node], f"no heartbeat for {self._silence.of(node):.0f} s")
            await self._finish(kept)

    def _mine(self, entry: NodeEntry) -> bool:
        return entry.by == self.name or _now() - entry.failed > TAKE_OVER * 1000

    async def _declare(self, kept: Kept, reason: str) -> Kept:
        """Fence the present life unless somebody wrote the entry meanwhile; the entry as it is then."""
        declared = await self._put(failed(kept.entry, _now(), by=self.name, reason=reason), kept.revision)
        now_kept = self._kept[kept.entry.node]
        if declared:
            log.error("%s is declared failed: %s", kept.entry.node, reason)
            workload_of(self._bus).figures.count(names.FENCES, kept.entry.node)
            who = subjects.Address("node", "fence", "none", self.name)
            self._auditor.note(who, subjects.SCHED_FAIL, outcome="ok", target=kept.entry.node, detail=reason)
        return now_kept

    async def _finish(self, kept: Kept) -> None:
        """Have the records of the fenced lives say so."""
        entry = kept.entry
        if entry.swept >= entry.fenced:
            return
        count = await self._sweep.run(entry)
        log.warning("%s: %d sandboxes are failed", entry.node, count)
        while not await self._put(entry.model_copy(update={"swept": entry.fenced}), kept.revision):
            kept = self._kept[entry.node]
            if kept.entry.fenced != entry.fenced or kept.entry.swept >= entry.fenced:
                return
            entry = kept.entry

    async def _put(self, entry: NodeEntry, revision: int) -> bool:
        """Write the entry if it is still at `revision`; know it as it is afterwards."""
        kept = await self._nodes.put(entry, revision)
        won = kept is not None
        if kept is None:
            kept = await self._nodes.get(entry.node, timeout=2.0)
        if kept is not None:
            self._kept[entry.node] = kept
        return won


def _now() -> int:
    return int(time.time() * 1000)
