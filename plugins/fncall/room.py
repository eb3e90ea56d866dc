"""How much runs at once on a node: places and memory, fairly between projects; who cannot wait is told at
once.

A place goes to the project that has the fewest, of those that wait, and to its calls in their order. One
project leaves a quarter to others even when nobody waits: calls may be long, and the next one is not to wait
for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from dsec.bus.errors import NoCapacity, Overloaded

RETRY_AFTER: Final = 0.5


@dataclass(slots=True, eq=False)
class _Turn:
    project: str
    memory: int
    came: asyncio.Future[None]


class Room:
    """`places` calls with `memory` bytes together; at most `waiting` others wait for theirs."""

    def __init__(self, places: int, memory: int, waiting: int) -> None:
        self._places = places
        self._memory = memory
        self._waiting = waiting
        self._most = (max(1, places * 3 // 4), memory * 3 // 4)
        self._queue: list[_Turn] = []
        self._running: Counter[str] = Counter()
        self._used: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @contextlib.asynccontextmanager
    async def taken(self, project: str, memory: int, patience: float) -> AsyncIterator[None]:
        """A place with `memory` bytes while the block runs, within `patience` seconds.

        Raises NoCapacity (more than a project can have), Overloaded.
        """
        if memory > self._most[1]:
            why = f"this node gives {self._most[1]} bytes to the calls of a project, fewer than that"
            raise NoCapacity(why, field="limits.memory")
        turn = _Turn(project, memory, asyncio.get_running_loop().create_future())
        await self._wait(turn, patience)
        try:
            yield
        finally:
            self._give_back(turn)

    async def _wait(self, turn: _Turn, patience: float) -> None:
        if len(self._queue) >= self._waiting:
            raise Overloaded("too many calls wait on this node", retry_after=RETRY_AFTER)
        self._queue.append(turn)
        self._admit()
        try:
            async with asyncio.timeout(patience):
                await turn.came
        except BaseException as error:
            if turn in self._queue:
                self._queue.remove(turn)
                self._admit()
            else:  # its turn had just come
                self._give_back(turn)
            if isinstance(error, TimeoutError):
                why = f"no place for the call within {patience:.1f} s"
                raise Overloaded(why, retry_after=RETRY_AFTER) from None
            raise

    def _give_back(self, turn: _Turn) -> None:
        self._running[turn.project] -= 1
        self._used[turn.project] -= turn.memory
        self._running, self._used = +self._running, +self._used
        self._admit()

    def _admit(self) -> None:
        """The one that is due waits for enough memory: otherwise small calls would pass it for ever."""
        while (turn := self._due()) is not None and self._fits(turn):
            self._queue.remove(turn)
            self._running[turn.project] += 1
            self._used[turn.project] += turn.memory
            turn.came.set_result(None)

    def _due(self) -> _Turn | None:
        places, memory = self._most
        waiting = (
            one
            for one in self._queue
            if self._running[one.project] < places and self._used[one.project] + one.memory <= memory
        )
        return min(waiting, key=lambda one: self._running[one.project], default=None)

    def _fits(self, turn: _Turn) -> bool:
        places, memory = self._running.total(), self._used.total()
        return places < self._places and memory + turn.memory <= self._memory
