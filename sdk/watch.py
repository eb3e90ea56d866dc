"""Changes of a project's sandboxes: events as they come, and a list to begin with and after each gap.

No consumer is made in the broker. Events that were on the way while a list was read come twice, those sent
while the connection was broken not at all; a record's epoch and `changed` tell which of two is newer, and a
list after each reconnection has what was missed. Destroyed sandboxes are listed for an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Final

from dsec.bus.messages import Event, Record, State
from dsec.bus.transport import Received
from dsec.sdk.link import Link

RELIST: Final = 60.0
"""Seconds after which a list is read again in any case."""
PAGE: Final = 1000
REMEMBERED: Final = 10_000
"""Ended sandboxes whose last change is known, so that it is not told twice."""
_ENDED: Final = frozenset({State.FAILED, State.DESTROYED})


@dataclass(frozen=True, slots=True)
class Change:
    """`record` is what the sandbox has come to; `what` names the event, or is `listed`: a list told it."""

    what: str
    record: Record


class Known:
    """The newest that was told of each sandbox. No I/O."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[tuple[int, int, bool], Record]] = {}
        self._ended: OrderedDict[str, tuple[int, int, bool]] = OrderedDict()

    def news(self, record: Record) -> bool:
        """Whether the record is newer than all before; then it is the newest."""
        age = (record.epoch, record.changed, record.state in _ENDED)
        live = self._live.get(record.sandbox)
        former = live[0] if live is not None else self._ended.get(record.sandbox)
        if former is not None and age <= former:
            return False
        self._live.pop(record.sandbox, None)
        self._ended.pop(record.sandbox, None)
        if record.state is State.DESTROYED:
            self._ended[record.sandbox] = age
            if len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
        else:
            self._live[record.sandbox] = age, record
        return True

    def missing(self, listed: set[str]) -> list[Record]:
        """What lived and is in no whole list any more: it was destroyed long ago."""
        return [
            record.model_copy(update={"state": State.DESTROYED, "changed": record.changed + 1})
            for sandbox, (_, record) in self._live.items()
            if sandbox not in listed
        ]


async def watch(link: Link, *, job: str | None = None) -> AsyncGenerator[Change, None]:
    """See Client.watch."""
    known = Known()
    events: deque[Change] = deque()
    news, gap = asyncio.Event(), asyncio.Event()

    def heard(message: Received) -> None:
        record = Event.model_validate_json(message.data).record
        if job in {None, record.spec.job}:
            events.append(Change(message.subject.split(".", 2)[1], record))
            news.set()

    def broken() -> None:
        gap.set()
        news.set()

    subscription = await link.bus.subscribe(f"event.*.{link.project}.>", heard)
    link.reconnected.add(broken)
    try:
        gap.set()
        while True:
            if gap.is_set():
                gap.clear()
                async for change in _listed(link, known, job):
                    yield change
            while events:
                change = events.popleft()
                if known.news(change.record):
                    yield change
            if not gap.is_set():
                await _wait(news, gap)
    finally:
        link.reconnected.discard(broken)
        await subscription.unsubscribe()


async def _wait(news: asyncio.Event, gap: asyncio.Event) -> None:
    """Until there is an event, or a list is due."""
    try:
        async with asyncio.timeout(RELIST):
            await news.wait()
    except TimeoutError:
        gap.set()
    news.clear()


async def _listed(link: Link, known: Known, job: str | None) -> AsyncIterator[Change]:
    """What a whole list has that is not known yet."""
    found: set[str] = set()
    async with contextlib.aclosing(listed(link, job=job, gone=True)) as records:
        async for record in records:
            found.add(record.sandbox)
            if record.state is not State.UNKNOWN and known.news(record):
                yield Change("listed", record)
    for record in known.missing(found):
        if known.news(record):
            yield Change("listed", record)


async def listed(
    link: Link, *, state: State | str | None = None, job: str | None = None, gone: bool = False
) -> AsyncGenerator[Record, None]:
    """Every record, one that changes meanwhile perhaps twice."""
    body = {"state": state, "job": job, "gone": gone, "limit": PAGE, "cursor": 0}
    while True:
        page = await link.call(link.subject("sandbox", "list"), body)
        for record in page["sandboxes"]:
            yield Record.model_validate(record)
        if not page["more"]:
            return
        body["cursor"] = page["cursor"]
