"""A node's records in the registry: the newest of each sandbox is written, by compare-and-set.

The bucket has no history, so what was overtaken while its predecessor was on the way is never sent. A write
names the revision it follows: when the watcher has declared the sandbox failed meanwhile, or a later life of
the node has written, the broker refuses it, however late it is delivered. A refusal is looked into: our own
write whose acknowledgement was lost is gone on from, a tombstone is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dsec.bus import subjects
from dsec.bus.errors import Conflict, Failure, InfraError
from dsec.bus.messages import Record, State
from dsec.bus.nats.appender import Appender, Stored
from dsec.bus.nats.directget import DirectGet
from dsec.bus.nats.directget import Stored as Kept
from dsec.bus.nodes import EXPECTED
from dsec.bus.registry import lasting

log = logging.getLogger(__name__)

STREAM: Final = f"KV_{subjects.REGISTRY_BUCKET}"
TOMBSTONE: Final = "24h"
"""How long a sandbox that its node lost stays in the registry: calls to it answer `infra` so long."""
FLUSH: Final = 5.0
"""Seconds that leaving the block waits for writes under way."""
PAUSE: Final = 0.3
LAG: Final = 0.05
"""Seconds that a replica which lags is left before the write is tried again."""
LOOKS: Final = 64
"""Records that are read at once: a node that is started again has to read all that it has."""


@dataclass(frozen=True, slots=True)
class Version:
    """One state of a sandbox's record, to be written to `subject`. `last`: nothing follows it."""

    subject: str
    epoch: int
    data: bytes
    headers: Mapping[str, str]
    last: bool = False


@dataclass(slots=True)
class _Key:
    """One sandbox with a write under way: what is to be written, after which revision (None: unknown)."""

    wanted: Version
    revision: int | None
    refused: int | None = None
    """The revision that was last found not to be the newest; a replica that lags tells it once more."""


class Registrar:
    """See the module. Made by `running`; nothing here waits for the broker."""

    def __init__(self, appender: Appender, reader: DirectGet) -> None:
        self._appender = appender
        self._reader = reader
        self._busy: dict[str, _Key] = {}
        self._revisions: dict[str, int] = {}
        self._looking = asyncio.Semaphore(LOOKS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, appender: Appender, reader: DirectGet) -> AsyncIterator[Registrar]:
        """Leaving waits `FLUSH` seconds for what is not stored, then gives it up."""
        registrar = cls(appender, reader)
        try:
            yield registrar
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH):
                    while registrar._busy:
                        registrar._idle.clear()
                        await registrar._idle.wait()
        finally:
            for task in registrar._tasks:
                task.cancel()
            await asyncio.gather(*registrar._tasks, return_exceptions=True)

    @property
    def busy(self) -> int:
        """Sandboxes whose newest record is not stored yet."""
        return len(self._busy)

    def put(self, record: Record, *, fresh: bool = False) -> None:
        """`record` is the newest of its sandbox; `fresh`: it is also the first."""
        self.write(version(record), fresh=fresh)

    def write(self, wanted: Version, *, fresh: bool = False) -> None:
        """As `put`, for who has the record as JSON."""
        key = self._busy.get(wanted.subject)
        if key is not None:
            key.wanted = wanted
            return
        known = self._revisions.pop(wanted.subject, None)
        self._busy[wanted.subject] = key = _Key(wanted, 0 if fresh and known is None else known)
        self._next(key)

    def _next(self, key: _Key) -> None:
        if key.revision is None:
            self._spawn(self._look(key))
            return
        wanted = key.wanted
        headers = {**wanted.headers, EXPECTED: str(key.revision)}
        stored = self._appender.put(wanted.subject, wanted.data, headers=headers)
        stored.add_done_callback(partial(self._stored, key, wanted))

    def _stored(self, key: _Key, wanted: Version, stored: Stored) -> None:
        error = None if stored.cancelled() else stored.exception()
        if isinstance(error, Conflict):
            key.refused, key.revision = key.revision, None
            self._next(key)
        elif stored.cancelled() or error is not None:
            self._rest(key)  # the node stops, and the next one writes it; or it can never be stored
        else:
            key.revision = stored.result()
            self._written(key, wanted)

    def _written(self, key: _Key, wanted: Version) -> None:
        if key.wanted is not wanted:
            self._next(key)
            return
        if key.revision is not None and not wanted.last:
            self._revisions[wanted.subject] = key.revision
        self._rest(key)

    async def _look(self, key: _Key) -> None:
        """Learn the revision to follow, for as long as the broker is away."""
        subject = key.wanted.subject
        async with self._looking:
            stored = await self._read(subject)
        held = Record.model_validate_json(stored.data) if stored is not None and stored.data else None
        key.revision = 0 if stored is None else stored.sequence
        if held is not None and outlived(key.wanted, held):
            log.warning("%s: the registry keeps what was written after this life", subject)
            self._rest(key)
        elif held == Record.model_validate_json(key.wanted.data):
            self._written(key, key.wanted)
        else:
            if key.revision == key.refused:
                await asyncio.sleep(LAG)
            self._next(key)

    async def _read(self, subject: str) -> Kept | None:
        while True:
            try:
                return await self._reader.last(STREAM, subject)
            except InfraError as error:
                log.warning("%s cannot be read, trying again: %s", subject, error)
                await asyncio.sleep(PAUSE)

    def _rest(self, key: _Key) -> None:
        if self._busy.pop(key.wanted.subject, None) is not None:
            self._idle.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def tombstone(record: Record, reason: str) -> Record:
    """The record of a sandbox whose node was declared failed."""
    lost = {"state": State.FAILED, "failure": Failure.INFRA, "reason": reason, "fenced": True}
    return record.model_copy(update=lost | {"changed": record.changed + 1})


def outlived(mine: Record | Version, held: Record) -> bool:
    """Whether `held`, in the registry, may not be overwritten by `mine`: a tombstone, or a later life's."""
    return held.fenced or held.epoch > mine.epoch


def version(record: Record) -> Version:
    """The record as it is written."""
    last = record.fenced or record.state is State.DESTROYED
    return Version(subject_of(record), record.epoch, *encoded(record), last)


def subject_of(record: Record) -> str:
    """Where the record is written."""
    return subjects.kv(subjects.REGISTRY_BUCKET, subjects.registry_key(record.project, record.sandbox))


def encoded(record: Record) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a write: what has ended or is lost stays as a tombstone, and expires."""
    headers = {"Nats-TTL": TOMBSTONE} if record.fenced else lasting(record)
    return record.model_dump_json().encode(), headers
