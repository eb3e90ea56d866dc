"""Appends records to streams: acknowledged, in order per subject, and again until they are stored.

A record is published with a reply subject under the node's own inbox, where JetStream acknowledges it. Each
subject is a lane that goes back to its first un-acked record on a refusal, a lost connection or 300 ms
without progress (go-back-N); acknowledgements count in order only, so a stored lane folds to the same bytes
however often it was sent. At most `window` bytes are un-acked over all lanes: what is in flight here stands
before every reply on the connection, so the window is what bounds the latency of control messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from dsec.bus.errors import BrokerDown, Conflict, DsecError, InfraError, LimitError, TooLarge
from dsec.bus.ids import tail
from dsec.bus.metrics.figures import Sample
from dsec.bus.metrics.names import RECORDS, UNACKED
from dsec.bus.metrics.names import WINDOW as WINDOW_BYTES
from dsec.bus.transport import Bus, Received
from dsec.bus.workload import workload_of

log = logging.getLogger(__name__)

WINDOW: Final = 256 * 1024
STALLED: Final = 0.3
"""Seconds without progress after which a lane is sent again."""
FLUSH: Final = 5.0
"""Seconds that leaving the block waits for what is still un-acked."""
OVERHEAD: Final = 512
"""Bytes a record counts for besides its data."""

# err_code of nats-server's errors.json; everything else may pass with time and is tried again.
_FINAL: Final[dict[int, type[DsecError]]] = {
    10071: Conflict,  # wrong last sequence
    10164: Conflict,  # the same, of a subject
    10054: TooLarge,  # message over the stream's maximum
    10077: LimitError,  # maximum messages per subject (told as a failed store)
}

Stored = asyncio.Future[int]
"""Resolved with its sequence in the stream when the record is stored; fails with Conflict, TooLarge or
LimitError when it never will be."""


@dataclass(slots=True)
class _Record:
    number: int
    data: bytes
    headers: Mapping[str, str] | None
    lane: _Lane
    stored: Stored
    cost: int


@dataclass(slots=True)
class _Lane:
    """Un-acked records of one subject, oldest first; the first `sent` of them are on the wire."""

    subject: str
    progress: float
    records: deque[_Record] = field(default_factory=deque)
    sent: int = 0
    queued: bool = False


class Appender:
    """See the module. Made by `running`."""

    def __init__(self, bus: Bus, window: int) -> None:
        self._bus = bus
        self._loop = asyncio.get_running_loop()
        self._window = window
        self._inbox = f"{bus.inbox}.ack-{tail(8)}"
        self._numbers = itertools.count()
        self._lanes: dict[str, _Lane] = {}
        self._unacked: dict[int, _Record] = {}
        self._used = 0
        self._stored, self._refused, self._again = 0, 0, 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._ready: deque[_Lane] = deque()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus, window: int = WINDOW) -> AsyncIterator[Appender]:
        """An appender on `bus`. Leaving waits `FLUSH` seconds for what is not stored, then gives it up."""
        appender = cls(bus, window)
        subscription = await bus.subscribe(appender._inbox + ".*", appender._acknowledged)
        tasks = [asyncio.create_task(appender._send()), asyncio.create_task(appender._go_back_when_stalled())]
        try:
            with workload_of(bus).figures.telling(appender._samples):
                yield appender
            await appender._flush()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(DsecError):
                await subscription.unsubscribe()
            appender._give_up()

    @property
    def unacked(self) -> int:
        """Bytes handed over and not stored yet, as they count against the window."""
        return self._used

    def _samples(self) -> Iterator[Sample]:
        yield UNACKED, (), self._used
        yield WINDOW_BYTES, (), self._window
        outcomes = {"stored": self._stored, "refused": self._refused, "sent_again": self._again}
        yield from ((RECORDS, (outcome,), count) for outcome, count in outcomes.items())

    async def append(self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None) -> Stored:
        """Hand a record over as soon as the window has room, first come first served."""
        cost = len(data) + OVERHEAD
        if self._waiters or not self._fits(cost):
            await self._turn(cost)
        return self.put(subject, data, headers=headers)

    def put(self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None) -> Stored:
        """Hand a record over at once: for small records that must not wait behind streams."""
        lane = self._lanes.get(subject)
        if lane is None:
            lane = self._lanes[subject] = _Lane(subject, time.monotonic())
        stored: Stored = self._loop.create_future()
        record = _Record(next(self._numbers), data, headers, lane, stored, len(data) + OVERHEAD)
        lane.records.append(record)
        self._unacked[record.number] = record
        self._used += record.cost
        self._idle.clear()
        self._queue(lane)
        return stored

    def _fits(self, cost: int) -> bool:
        return self._used == 0 or self._used + cost <= self._window

    async def _turn(self, cost: int) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._waiters.append((cost, mine))
        try:
            await mine
        except asyncio.CancelledError:
            self._waiters = deque(waiter for waiter in self._waiters if waiter[1] is not mine)
            if mine.done() and not mine.cancelled():
                self._release(cost)
            raise
        self._used -= cost  # reserved by `_release`; `put` follows without an await and counts it again

    def _release(self, cost: int) -> None:
        self._used -= cost
        while self._waiters and self._fits(self._waiters[0][0]):
            reserved, waiter = self._waiters.popleft()
            if not waiter.done():
                self._used += reserved
                waiter.set_result(None)

    def _queue(self, lane: _Lane) -> None:
        if not lane.queued and lane.sent < len(lane.records):
            lane.queued = True
            self._ready.append(lane)
            self._work.set()

    async def _send(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._ready:
                if not self._bus.connected:
                    await self._reconnected()
                await self._send_next(self._ready.popleft())

    async def _send_next(self, lane: _Lane) -> None:
        lane.queued = False
        if lane.sent >= len(lane.records):
            return
        record = lane.records[lane.sent]
        if lane.sent == 0:
            lane.progress = time.monotonic()
        lane.sent += 1
        self._queue(lane)
        try:
            await self._bus.publish(
                lane.subject, record.data, f"{self._inbox}.{record.number}", record.headers
            )
        except TooLarge as error:
            self._settle(record, error)
        except BrokerDown:
            await self._reconnected()

    async def _reconnected(self) -> None:
        """Wait for the connection, then everything un-acked goes again."""
        while not self._bus.connected:  # noqa: ASYNC110 - a bus tells its state, not its changes
            await asyncio.sleep(0.02)
        for lane in list(self._lanes.values()):
            self._go_back(lane)

    def _go_back(self, lane: _Lane) -> None:
        self._again += lane.sent
        lane.sent = 0
        lane.progress = time.monotonic()
        self._queue(lane)

    async def _go_back_when_stalled(self) -> None:
        while True:
            await asyncio.sleep(STALLED / 3)
            limit = time.monotonic() - STALLED
            if self._bus.connected:
                for lane in list(self._lanes.values()):
                    if lane.sent and lane.progress < limit:
                        self._go_back(lane)

    def _acknowledged(self, message: Received) -> None:
        record = self._unacked.get(int(message.subject.rpartition(".")[2]))
        if record is None:
            return
        refusal = None if b'"error"' not in message.data and message.data else _refusal(message.data)
        if refusal is None:
            if record.lane.records[0] is record:
                self._settle(record, orjson.loads(message.data)["seq"])
        elif type(refusal) in _FINAL.values():
            self._settle(record, refusal)
        # any other refusal is left to the stalled rule: a broker without a leader is not helped by haste

    def _settle(self, record: _Record, outcome: int | DsecError) -> None:
        lane = record.lane
        at = lane.records.index(record)
        del lane.records[at]
        lane.sent -= at < lane.sent
        lane.progress = time.monotonic()
        del self._unacked[record.number]
        if not lane.records:
            del self._lanes[lane.subject]
        self._release(record.cost)
        if isinstance(outcome, int):
            self._stored += 1
        else:
            self._refused += 1
        if not record.stored.done():
            _resolve(record.stored, outcome)
        if not self._unacked:
            self._idle.set()

    async def _flush(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH):
                await self._idle.wait()

    def _give_up(self) -> None:
        for record in list(self._unacked.values()):
            self._settle(record, BrokerDown("the record was not stored before the node stopped"))
        for _, waiter in self._waiters:
            waiter.cancel()


def _resolve(stored: Stored, outcome: int | DsecError) -> None:
    if isinstance(outcome, int):
        stored.set_result(outcome)
        return
    stored.set_exception(outcome)
    stored.exception()  # seen: a caller that does not wait for the record is not warned about it
    log.warning("record refused: %s", outcome)


def _refusal(data: bytes) -> DsecError:
    """The error in a JetStream PubAck; an empty one is the broker's "no responders"."""
    try:
        error = orjson.loads(data)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return InfraError("no stream takes the subject")
    kind = _FINAL.get(error.get("err_code"), InfraError)
    return kind(f"the stream refused the record: {error.get('description')}")
