"""The scheduler: answers `sched.place` out of the nodes' heartbeats. Any number run in one queue group.

A fresh one listens for a heartbeat period before it answers, so that it does not give everything to the
first node it hears. One that it never heard it calls dead only when it has listened for as long as makes a
node suspect: what had the scheduler started anew may have cut the node off, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from dsec.bus import operation, subjects
from dsec.bus.core.jobs.messages import Spread
from dsec.bus.errors import DsecError, NoCapacity, NodeLost
from dsec.bus.handlers import decode, ok, serving_internal
from dsec.bus.host import Context
from dsec.bus.messages import Heartbeat, Place
from dsec.bus.metrics.figures import Figures
from dsec.bus.metrics.names import PLACEMENTS
from dsec.bus.transport import Bus, Received
from dsec.bus.workload import workload_of
from dsec.plugins.scheduler.placement import DEFAULT_ASK, Ask, choose_many
from dsec.plugins.scheduler.silence import DEFAULT, Patience
from dsec.plugins.scheduler.spread import apportion
from dsec.plugins.scheduler.view import View
from dsec.plugins.scheduler.watcher import Watcher

log = logging.getLogger(__name__)
QUEUE: Final = "scheduler"
LISTEN: Final = 1.2
"""Seconds in which every living node has been heard (heartbeats come at 1 Hz)."""
TICK: Final = 0.25
"""Seconds between looks at whether we hear anybody at all."""
HUNG: Final = 30.0
"""Seconds after which a connection whose broker hangs is known to be broken: whoever is silent on a good one
for longer is silent."""


class Scheduler:
    """Keeps the view and answers."""

    def __init__(self, patience: Patience = DEFAULT, figures: Figures | None = None) -> None:
        self._figures = figures or Figures()
        self._suspect = patience.suspect
        self._view = View(patience.suspect)
        self._began = time.monotonic()
        self._heard = self._looked = self._began
        self._news = asyncio.Event()
        self._rng = random.Random()  # noqa: S311 - dice, not secrets
        self._listened = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, bus: Bus, context: Context, *, listen: float = LISTEN, patience: Patience = DEFAULT
    ) -> AsyncIterator[None]:
        """Place, and watch the nodes, while the block runs."""
        scheduler = cls(patience, workload_of(bus).figures)
        heartbeats = await bus.subscribe(subjects.ALL_HEARTBEATS, scheduler.heard)
        listening = asyncio.create_task(scheduler._listen(bus))
        timer = asyncio.get_running_loop().call_later(listen, scheduler._listened.set)
        try:
            await scheduler._listened.wait()  # until then others of the group are better to ask
            async with (
                serving_internal(bus, subjects.SCHED_PLACE, scheduler.place, queue=QUEUE),
                serving_internal(bus, subjects.SCHED_SPREAD, scheduler.spread, queue=QUEUE),
                serving_internal(bus, subjects.SCHED_NODES, scheduler.nodes, queue=QUEUE),
                Watcher.running(bus, patience),
            ):
                yield
        finally:
            timer.cancel()
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await heartbeats.unsubscribe()

    def heard(self, message: Received) -> None:
        """A heartbeat; one that cannot be read is logged, its node then turns suspect."""
        try:
            heartbeat = decode(Heartbeat, message.data)
        except DsecError as error:
            log.warning("heartbeat on %s: %s", message.subject, error)
            return
        if subjects.node_heartbeat(heartbeat.node) == message.subject:
            self._heard = time.monotonic()
            self._view.heard(heartbeat, self._heard, int(time.time() * 1000))
            self._news.set()

    async def _listen(self, bus: Bus) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.look(time.monotonic(), connected=bus.connected)

    def look(self, now: float, *, connected: bool) -> None:
        """Silence counts while we run, are connected, and hear one of several nodes at least; to be told
        every `TICK` seconds. `now` is monotonic."""
        since, self._looked = self._looked, now
        nobody = len(self._view) > 1 and LISTEN < now - self._heard < HUNG
        if not connected or nobody or now - since > LISTEN:
            self._view.deaf(now - since)
            self._began += now - since

    async def place(self, message: Received) -> bytes:
        """`{"node": …}` for a Place. Raises NoCapacity, or NodeLost when asked `at` a dead node."""
        place = decode(Place, message.data)
        await self._listened.wait()
        if place.at is not None:
            return ok({"node": await self._at(place.at)})
        nodes = self._choose(place)
        _log(place, nodes)
        return ok({"node": nodes[0], "nodes": nodes})

    async def spread(self, message: Received) -> bytes:
        """`{"nodes": {node: how many}}` for a Spread; fewer in all than asked for when there is no room."""
        asked = decode(Spread, message.data)
        await self._listened.wait()
        cpu, memory = asked.cpu or DEFAULT_ASK[0], asked.memory or DEFAULT_ASK[1]
        ask = Ask(asked.backend, cpu, memory, frozenset(asked.excluded))
        now = time.monotonic()
        shares = apportion(ask, asked.count, self._view.candidates(now))
        for node, share in shares.items():
            self._view.placed(node, replace(ask, cpu=cpu * share, memory=memory * share), now)
            self._figures.count(PLACEMENTS, node, by=share)
        return ok({"nodes": shares})

    async def nodes(self, _: Received) -> bytes:
        """`{"nodes": {node: whether it lives}}` of all heard lately."""
        await self._listened.wait()
        now = time.monotonic()
        known = [candidate.node for candidate in self._view.candidates(now)]
        return ok({"nodes": {node: self._view.alive(node, now) for node in known}})

    async def _at(self, node: str) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._began + self._suspect - time.monotonic()):
                while not self._view.knows(node):
                    self._news.clear()
                    await self._news.wait()
        if not self._view.alive(node, time.monotonic()):
            raise NodeLost(f"{node} has not been heard of lately")
        return node

    def _choose(self, place: Place) -> list[str]:
        cpu, memory = DEFAULT_ASK
        ask = Ask(place.backend, place.cpu or cpu, place.memory or memory, frozenset(place.excluded))
        now = time.monotonic()
        nodes = list(self._view.candidates(now))
        chosen = choose_many(ask, place.count, nodes, self._rng)
        if not chosen:
            raise NoCapacity(
                f"none of {len(nodes)} nodes is healthy, has {ask.backend} and room; try again later"
            )
        for node, count in Counter(chosen).items():
            self._view.placed(node, ask, now, count)
            self._figures.count(PLACEMENTS, node, by=count)
        return chosen


def _log(place: Place, nodes: list[str]) -> None:
    """A line for each operation: they come many in one question, each with a caller of its own."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    for op, node in zip(place.ops, nodes, strict=False):
        with operation.about(place.traces.get(op, ""), op=op):
            log.debug("placed on %s", node)
