"""How much runs at once on a node: places and memory, first come, first served; who cannot wait is told at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from dsec.bus.errors import NoCapacity, Overloaded

RETRY_AFTER = 0.5


class Room:
    """`places` calls with `memory` bytes together; at most `waiting` others wait for theirs."""

    def __init__(self, places: int, memory: int, waiting: int) -> None:
        self._places = places
        self._most = self._memory = memory
        self._waiting = waiting
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @contextlib.asynccontextmanager
    async def taken(self, memory: int, patience: float) -> AsyncIterator[None]:
        """A place with `memory` bytes while the block runs, within `patience` seconds.

        Raises NoCapacity (more than all there is), Overloaded.
        """
        if memory > self._most:
            raise NoCapacity(
                f"this node gives {self._most} bytes to calls, fewer than that", field="limits.memory"
            )
        await self._enter(memory, patience)
        try:
            yield
        finally:
            self._places += 1
            self._memory += memory
            self._admit()

    async def _enter(self, memory: int, patience: float) -> None:
        if len(self._queue) >= self._waiting:
            raise Overloaded("too many calls wait on this node", retry_after=RETRY_AFTER)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((memory, turn))
        self._admit()
        try:
            async with asyncio.timeout(patience):
                await turn
        except BaseException as error:
            self._give_up(memory, turn)
            if isinstance(error, TimeoutError):
                why = f"no place for the call within {patience:.1f} s"
                raise Overloaded(why, retry_after=RETRY_AFTER) from None
            raise

    def _give_up(self, memory: int, turn: asyncio.Future[None]) -> None:
        """It may just have had its turn."""
        if turn.done() and not turn.cancelled():
            self._places += 1
            self._memory += memory
        self._queue = deque(one for one in self._queue if one[1] is not turn)
        self._admit()

    def _admit(self) -> None:
        while self._queue and self._places and self._queue[0][0] <= self._memory:
            memory, turn = self._queue.popleft()
            if turn.done():
                continue
            self._places -= 1
            self._memory -= memory
            turn.set_result(None)
