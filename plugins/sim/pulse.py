"""What a simulated node tells of itself: heartbeats to the scheduler, figures to whoever scrapes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from dsec.bus import subjects
from dsec.bus.errors import InfraError
from dsec.bus.messages import Heartbeat
from dsec.bus.metrics import names
from dsec.bus.metrics.figures import Sample

if TYPE_CHECKING:
    from dsec.plugins.sim.node import SimNode

EVERY: Final = 1.0
"""Seconds between heartbeats."""


class Pulse:
    """Of one simulated node."""

    def __init__(self, node: SimNode) -> None:
        self._node = node

    @property
    def backend(self) -> str:
        """Its name, or of several names the first: a table of hundreds of thousands does not keep which."""
        return next(iter(self._node.config.backends), "")

    def samples(self) -> Iterator[Sample]:
        """See Figures.telling."""
        project, books = self._node.figures.project, self._node.books
        states = Counter((held.project, held.state) for held in books.table.values())
        for (whose, state), count in states.items():
            yield names.SANDBOXES, (self.backend, project(whose), state.value), count
        yield names.CPU, (), self._node.config.cpu
        yield names.CPU_PROMISED, (), max(0.0, books.cpu)
        yield names.MEMORY, (), self._node.config.memory
        yield names.MEMORY_PROMISED, (), books.memory
        yield names.OPEN, (), int(self._node.lives.open.is_set())
        yield names.LIFE, (), self._node.lives.epoch

    async def appear(self) -> None:
        """The first heartbeat: who is asked to place after this has heard of the node."""
        with contextlib.suppress(InfraError):
            await self._tell()
            await self._node.bus.round_trip()

    async def beat(self) -> None:
        await asyncio.sleep(random.uniform(0, EVERY))  # noqa: S311 - many nodes start together
        while True:
            await self._node.lives.open.wait()
            with contextlib.suppress(InfraError):  # not connected: silence is what the watcher needs to hear
                await self._tell()
            await asyncio.sleep(EVERY)

    async def _tell(self) -> None:
        subject = subjects.node_heartbeat(self._node.node)
        await self._node.bus.publish(subject, self._heartbeat().model_dump_json().encode())

    def _heartbeat(self) -> Heartbeat:
        books, config = self._node.books, self._node.config
        return Heartbeat(
            node=self._node.node,
            epoch=self._node.lives.epoch,
            time=int(time.time() * 1000),
            backends={name: ["pause"] for name in config.backends},
            cpu=config.cpu,
            memory=config.memory,
            cpu_used=max(0.0, books.cpu),
            memory_used=books.memory,
            sandboxes=len(books.table) + len(self._node.creates),
        )
