"""Writing down that a node's sandboxes are failed: record, event and audit of each.

Idempotent: any number of watchers may do it, one after the other or at once. Each record is written by
compare-and-set, so nothing of a later life of the node is touched; events carry a message id, by which the
stream drops a second one.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from dsec.bus import registrar, subjects
from dsec.bus.errors import InfraError
from dsec.bus.messages import Audit, Event, Record, State
from dsec.bus.nats.appender import Appender
from dsec.bus.nats.directget import DirectGet, Stored, answer_of, ask
from dsec.bus.nodes import EXPECTED, WRONG_REVISION, NodeEntry
from dsec.bus.transport import Bus

PAGE: Final = 500
AT_ONCE: Final = 64
"""Records on their way."""
_ENDED: Final = frozenset({State.FAILED, State.DESTROYED})


class Sweep:
    """Sweeps as `bus`' identity."""

    def __init__(self, bus: Bus, reader: DirectGet, appender: Appender) -> None:
        self._bus = bus
        self._reader = reader
        self._appender = appender

    async def run(self, entry: NodeEntry) -> int:
        """How many records of the entry's fenced lives are tombstones now. Raises BrokerDown, InfraError."""
        sequence, count = 0, 0
        pattern = subjects.kv(subjects.REGISTRY_BUCKET, f"*.{entry.node}.*")
        gate = asyncio.Semaphore(AT_ONCE)

        async def guarded(stored: Stored) -> bool:
            async with gate:
                return await self._one(stored, entry)

        while True:
            batch = await self._reader.whole(
                registrar.STREAM, pattern, sequence, count=PAGE, max_bytes=2 << 20
            )
            count += sum(await asyncio.gather(*(guarded(stored) for stored in batch.messages)))
            if not batch.pending or not batch.messages:
                return count
            sequence = batch.messages[-1].sequence + 1

    async def _one(self, stored: Stored, entry: NodeEntry) -> bool:
        found: Stored | None = stored
        while found is not None and found.data:
            record = Record.model_validate_json(found.data)
            if record.epoch > entry.fenced or (record.state in _ENDED and not record.fenced):
                return False
            if record.fenced:  # somebody wrote it, and was perhaps ended before it told
                await self._tell(record, entry)
                return True
            lost = registrar.tombstone(record, entry.reason)
            if await self._write(lost, found.sequence):
                await self._tell(lost, entry)
                return True
            found = await self._reader.newest(registrar.STREAM, found.subject)
        return False

    async def _write(self, lost: Record, revision: int) -> bool:
        """False when the record was written meanwhile."""
        data, headers = registrar.encoded(lost)
        subject = registrar.subject_of(lost)
        body = answer_of(await ask(self._bus, subject, data, {**headers, EXPECTED: str(revision)}))
        error = body.get("error")
        if error is None:
            return True
        if error.get("err_code") in WRONG_REVISION:
            return False
        raise InfraError(f"the broker refused the record of {lost.sandbox}: {error.get('description')}")

    async def _tell(self, lost: Record, entry: NodeEntry) -> None:
        now, event_id, audit_id = _now(), message_id("event", lost), message_id("audit", lost)
        event = Event(time=now, record=lost).model_dump_json().encode()
        audit = Audit(
            time=now,
            op="sandbox.fail",
            principal=lost.principal,
            subject=subjects.SCHED_FAIL,
            target=lost.sandbox,
            outcome="ok",
            detail=f"{entry.node} was declared failed: {entry.reason}",
        )
        where = subjects.event("failed", lost.project, lost.sandbox)
        await self._appender.append(where, event, headers=event_id)
        where = subjects.audit("scheduler", "fail", lost.project)
        await self._appender.append(where, audit.model_dump_json().encode(), headers=audit_id)


def message_id(what: str, record: Record) -> dict[str, str]:
    """The header by which a stream knows what it has already."""
    return {"Nats-Msg-Id": f"fenced-{what}-{record.sandbox}-{record.epoch}"}


def _now() -> int:
    return int(time.time() * 1000)
