"""Asks schedulers for nodes, many creates in one question.

Creates that come while a question is on its way go with the next one together: alone, a create waits for
nothing; under load the price of a question is shared. A question that is late (its scheduler may have died
over it) does not hold up those that come after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from dsec.bus import operation, subjects
from dsec.bus.errors import DeadlineExceeded, DsecError, NoCapacity, NodeLost
from dsec.bus.handlers import result
from dsec.bus.messages import Place
from dsec.bus.transport import Bus, Received

ATTEMPT: Final = 0.7
"""Seconds that one scheduler has for its answer."""
LIVENESS: Final = 7.0
"""Seconds to wait for a scheduler's word on whether a node is alive; a fresh one calls none dead that it has
not listened for as long as it takes to suspect one."""
ABSENT: Final = 5.0
"""Seconds in which the only scheduler may be started again, and listen, before creates are refused."""
PAUSE: Final = 0.05
LATE: Final = 0.02
"""Seconds after which a question is no longer waited for before the next one goes."""
MOST: Final = 256
"""Creates in one question."""
RETRY_AFTER: Final = 0.5

Alike = tuple[str, float | None, int | None, tuple[str, ...]]


@dataclass(slots=True)
class _Waiting:
    until: float
    node: asyncio.Future[str]
    op: str
    traceparent: str


@dataclass(slots=True)
class _Line:
    """Creates that ask for the same: those that wait, and when the last question went, 0 if it is back."""

    place: Place
    waiting: list[_Waiting] = field(default_factory=list)
    asked: float = 0.0


class Placer:
    """Made by `running`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._lines: dict[Alike, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus) -> AsyncIterator[Placer]:
        placer = cls(bus)
        try:
            yield placer
        finally:
            for task in placer._tasks:
                task.cancel()
            await asyncio.gather(*placer._tasks, return_exceptions=True)

    async def place(self, place: Place, until: float, op: str = "") -> str:
        """A node for the operation `op`; `until` is unix seconds. Raises NoCapacity, DeadlineExceeded,
        BrokerDown."""
        key = (place.backend, place.cpu, place.memory, place.excluded)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(place)
        waiting = _Waiting(until, self._loop.create_future(), op, operation.traceparent())
        line.waiting.append(waiting)
        if not line.asked:
            line.asked = self._loop.time()
            self._loop.call_soon(self._ask, key)  # with all that come in the same turn of the loop
        elif self._loop.time() - line.asked > LATE:
            self._ask(key)
        return await waiting.node

    async def alive(self, node: str) -> None:
        """Raises NodeLost when a scheduler says that the node is dead, NoCapacity when there is none."""
        data = Place(backend="", at=node).model_dump_json().encode()
        result((await self._asked(data, time.time() + LIVENESS)).data)

    def _ask(self, key: Alike) -> None:
        line = self._lines.get(key)
        if line is None:
            return
        waiting = [one for one in line.waiting if not one.node.done()]
        batch, line.waiting = waiting[:MOST], waiting[MOST:]
        if not batch:
            del self._lines[key]
            return
        line.asked = self._loop.time()
        task = asyncio.create_task(self._question(key, line, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _question(self, key: Alike, line: _Line, batch: list[_Waiting]) -> None:
        asked = line.asked
        try:
            nodes = await self._nodes(line.place, batch)
        except DsecError as error:
            _settle(batch, [], error)
        except BaseException:
            _settle(batch, [], NoCapacity("core is stopping", retry_after=RETRY_AFTER))
            raise
        else:
            _settle(batch, nodes, NoCapacity("no more room on any node", retry_after=RETRY_AFTER))
        if line.asked == asked and self._lines.get(key) is line:
            self._ask(key)

    async def _nodes(self, place: Place, batch: list[_Waiting]) -> list[str]:
        """A node for each of `batch`, or fewer."""
        asked = {
            "count": len(batch),
            "ops": tuple(one.op for one in batch),
            "traces": {one.op: one.traceparent for one in batch if one.traceparent},
        }
        data = place.model_copy(update=asked).model_dump_json().encode()
        answer = result((await self._asked(data, max(one.until for one in batch))).data)
        return list(
            answer.get("nodes") or [answer["node"]] * len(batch)
        )  # the latter from an older scheduler

    async def _asked(self, data: bytes, until: float) -> Received:
        """A scheduler that dies over the question does not answer it: then another one is asked. One that is
        started again is waited for."""
        absent = min(until, time.time() + ABSENT)
        while True:
            timeout = max(0.05, min(ATTEMPT, until - time.time()))
            try:
                return await self._bus.request(subjects.SCHED_PLACE, data, timeout=timeout)
            except NodeLost as error:
                if time.time() > absent:
                    raise NoCapacity("no scheduler is running", retry_after=RETRY_AFTER) from error
                await asyncio.sleep(PAUSE)
            except DeadlineExceeded:
                if time.time() > until:
                    raise


def _settle(batch: list[_Waiting], nodes: list[str], error: DsecError) -> None:
    for at, one in enumerate(batch):
        if one.node.done():
            continue
        if at < len(nodes):
            one.node.set_result(nodes[at])
        else:
            one.node.set_exception(error)
