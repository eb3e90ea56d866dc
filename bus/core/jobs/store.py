"""The state of each batch in the bucket `jobs`, `<project>.<job>.<operation>`, by compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsec.bus import subjects
from dsec.bus.core.jobs.messages import Batch
from dsec.bus.errors import Conflict, InfraError
from dsec.bus.nats.directget import DirectGet, Stored, answer_of, ask
from dsec.bus.transport import Bus

_STREAM: Final = f"KV_{subjects.JOBS_BUCKET}"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_WRONG_REVISION: Final = {10071, 10164}
PAGE: Final = 256


@dataclass(frozen=True, slots=True)
class Kept:
    """A batch as stored under `revision`; 0: not stored yet."""

    batch: Batch
    revision: int = 0


class Store:
    """Methods raise BrokerDown and DeadlineExceeded; each may be repeated."""

    def __init__(self, bus: Bus, reader: DirectGet) -> None:
        self._bus = bus
        self._reader = reader

    async def get(self, project: str, job: str, operation: str) -> Kept | None:
        """The batch as the leader has it: one that was acknowledged is there."""
        stored = await self._reader.newest(_STREAM, _subject(project, job, operation))
        return None if stored is None else _kept(stored)

    async def put(self, kept: Kept) -> Kept:
        """Store the batch in place of `kept.revision`. Raises Conflict when somebody else wrote since."""
        batch = kept.batch
        subject = _subject(batch.project, batch.job, batch.op)
        data = batch.model_dump_json().encode()
        answer = answer_of(await ask(self._bus, subject, data, {_EXPECTED: str(kept.revision)}))
        error = answer.get("error")
        if error is None:
            return Kept(batch, int(answer["seq"]))
        if error.get("err_code") in _WRONG_REVISION:
            raise Conflict(f"batch {batch.op} was written by somebody else meanwhile")
        raise InfraError(f"the broker refused the state of a batch: {error.get('description')}")

    async def of_job(self, project: str, job: str) -> list[Kept]:
        """Every batch of a job that is still remembered."""
        found: dict[str, Kept] = {}
        sequence = 1
        while True:
            pattern = _subject(project, job, "*")
            batch = await self._reader.whole(_STREAM, pattern, sequence, count=PAGE, max_bytes=4 << 20)
            found |= {stored.subject: _kept(stored) for stored in batch.messages}
            if not batch.pending or not batch.messages:
                return list(found.values())
            sequence = batch.messages[-1].sequence + 1


def _kept(stored: Stored) -> Kept:
    return Kept(Batch.model_validate_json(stored.data), stored.sequence)


def _subject(project: str, job: str, operation: str) -> str:
    return subjects.kv(subjects.JOBS_BUCKET, subjects.job_key(project, job, operation))
