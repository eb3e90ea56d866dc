"""What the broker stores: its streams and buckets, and the read side of the registry.

| stream | holds | kept |
|---|---|---|
| EXEC | output frames of execs, written by nodes | 24 h, or until the disk budget is full |
| EVENT | state changes of sandboxes | 7 days |
| AUDIT | mutating calls and denials; nothing can be deleted or purged | 90 days |
| KV_registry | the record of each sandbox, written by its node | an hour longer than it lives |
| KV_ops | operation ids of creates | 24 h |
| KV_jobs | how far each batch is | 7 days after its last change |
| JOBS | batches to be carried out | until they are done |
| KV_quota | what each core holds of each limited project's budget | - |
| KV_nodes | the lives of each node: which counts, which were declared failed | - |
| KV_iam | identities (public keys) and projects, made and read by iam alone | - |
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError

from dsec.bus import subjects
from dsec.bus.errors import BrokerDown, DiskFull, GoneError, InfraError
from dsec.bus.messages import ListSandboxes, Record, Sandboxes, State
from dsec.bus.nats.directget import DirectGet, Stored
from dsec.bus.spec import GIB, MIB

HOUR, DAY = 3600.0, 86400.0
TOMBSTONE: Final = {"Nats-TTL": "1h"}
"""Headers of the last record of a sandbox that is gone: it can be read for as long, then it expires."""
PAGE = 1000
STREAM: Final = "KV_" + subjects.REGISTRY_BUCKET
IN_USE, _NO_STORAGE = 10058, 10047
"""JetStream's error codes "name already in use with a different configuration", "insufficient storage"."""
_TOO_FEW: Final = frozenset({10005, 10074})
"""Its codes "no suitable peers for placement", "replicas > 1 not supported in non-clustered mode"."""
_UNAVAILABLE: Final = 503


def lasting(record: Record) -> dict[str, str]:
    """Headers of the record's write: a destroyed sandbox can be read for an hour, a failed one, which its
    node destroys when its time is up, for an hour longer than that; the others have no end."""
    if record.state is State.DESTROYED:
        return TOMBSTONE
    if record.state is State.FAILED:
        left = max(0.0, record.expires / 1000 - time.time())
        return {"Nats-TTL": f"{left + HOUR:.0f}s"}
    return {}


def exec_budget(home: Path) -> int:
    """Bytes of EXEC: a quarter of the disk's free space, 20 GiB at most. Reserved when the stream is made."""
    return budget(shutil.disk_usage(home).free)


def budget(room: int) -> int:
    """Bytes of EXEC where `room` bytes may be stored in all: a quarter, 20 GiB at most."""
    return max(64 * MIB, min(20 * GIB, room // 4))


def streams(exec_bytes: int) -> list[StreamConfig]:
    """The configuration of every stream and bucket."""
    return [
        _log("EXEC", max_age=DAY, max_bytes=exec_bytes, max_msgs_per_subject=1 << 17),
        _log("EVENT", max_age=7 * DAY, max_bytes=exec_bytes // 16),
        _log("AUDIT", max_age=90 * DAY, max_bytes=exec_bytes // 16, deny_delete=True, deny_purge=True),
        _bucket(subjects.REGISTRY_BUCKET, max_age=0.0),
        _bucket(subjects.OPS_BUCKET, max_age=DAY),
        _bucket(subjects.JOBS_BUCKET, max_age=7 * DAY),
        _work(),
        _bucket(subjects.NODES_BUCKET, max_age=0.0),
        _bucket(subjects.QUOTA_BUCKET, max_age=0.0),
    ]


def identities() -> StreamConfig:
    """The bucket of iam, which makes it itself: nobody else can connect before. It takes atomic batches."""
    config = _bucket(subjects.IAM_BUCKET, max_age=0.0)
    config.allow_atomic = True
    return config


async def ensure(jetstream: JetStreamContext, exec_bytes: int = GIB, *, replicas: int = 1) -> None:
    """Make what is missing and leave the rest as it is, but for more `replicas` (`cluster.Survey` tells how
    many); any number of parts may do so at once.

    Raises DiskFull (the broker cannot reserve `exec_bytes`), BrokerDown (also when servers of the cluster are
    away that shall have a replica), InfraError.
    """
    for config in streams(exec_bytes):
        config.num_replicas = replicas
        try:
            await _ensure(jetstream, config)
        except NatsError as error:
            raise BrokerDown.during(f"making stream {config.name}", error) from error


async def ensure_identities(jetstream: JetStreamContext, *, replicas: int) -> None:
    """The bucket of iam, which is there, gets as many replicas; `jetstream` is iam's own.

    Raises BrokerDown, InfraError.
    """
    config = identities()
    config.num_replicas = replicas
    try:
        await replicate(jetstream, config)
    except NatsError as error:
        raise BrokerDown.during(f"replicating {config.name}", error) from error


async def _ensure(jetstream: JetStreamContext, config: StreamConfig) -> None:
    try:
        await jetstream.add_stream(config)
    except APIError as error:
        if error.err_code != IN_USE:
            raise _refused(error, config) from error
        await replicate(jetstream, config)


async def replicate(jetstream: JetStreamContext, config: StreamConfig) -> None:
    """Raise the number of an existing stream's replicas to `config.num_replicas`; it is served meanwhile.

    Raises BrokerDown, InfraError, nats.errors.Error.
    """
    assert config.name
    held = (await jetstream.stream_info(config.name)).config
    if (held.num_replicas or 1) < (config.num_replicas or 1):
        held.num_replicas = config.num_replicas
        try:
            await jetstream.update_stream(held)
        except APIError as error:
            raise _refused(error, config) from error


class Registry:
    """Records of sandboxes as their nodes wrote them. Reads raise BrokerDown, DeadlineExceeded."""

    def __init__(self, reader: DirectGet) -> None:
        self._reader = reader

    async def get(self, project: str, sandbox: str) -> Record | None:
        """The record, or None when the node never wrote one or has ended it."""
        subject = _subject(subjects.registry_key(project, sandbox))
        stored = await self._reader.newest(STREAM, subject)
        return None if stored is None else _record(stored)

    async def scan(self, project: str, cursor: int) -> Scan:
        """Some records of the project from stream sequence `cursor` on, in the order of their last change."""
        batch = await self._reader.whole(
            STREAM, _subject(project) + ".>", cursor, count=PAGE, max_bytes=4 * MIB
        )
        kept = [(stored.sequence, _record(stored)) for stored in batch.messages]
        return Scan(
            [(sequence, record) for sequence, record in kept if record is not None],
            kept[-1][0] + 1 if kept else cursor,
            bool(kept) and batch.pending > 0,
        )

    async def on_node(self, project: str, node: str) -> list[Record]:
        """What the project has on a node, as far as the node has told."""
        found: dict[str, Record] = {}
        sequence, more = 1, True
        while more:
            subject = _subject(f"{project}.{node}.*")
            batch = await self._reader.whole(STREAM, subject, sequence, count=PAGE, max_bytes=4 * MIB)
            records = [record for stored in batch.messages if (record := _record(stored)) is not None]
            found |= {record.sandbox: record for record in records}
            more = batch.pending > 0 and bool(batch.messages)
            sequence = batch.messages[-1].sequence + 1 if batch.messages else sequence
        return list(found.values())

    async def after(self, project: str, sandbox: str) -> int:
        """The sequence that follows the sandbox's record. Raises GoneError when there is none any more."""
        stored = await self._reader.newest(STREAM, _subject(subjects.registry_key(project, sandbox)))
        if stored is None:
            raise GoneError(f"{sandbox} is gone: list again from the start", field="after")
        return stored.sequence + 1


@dataclass(frozen=True, slots=True)
class Scan:
    """Records with their sequences; `more` follow at `cursor`."""

    records: list[tuple[int, Record]]
    cursor: int
    more: bool


class Page:
    """A page of a list while it is filled, with at most `max_bytes` of JSON. No I/O.

    Destroyed sandboxes show only when asked for. Once `full`, the list goes on at `cursor`.
    """

    def __init__(self, query: ListSandboxes, cursor: int, *, max_bytes: int) -> None:
        self.records: list[Record] = []
        self.cursor = cursor
        self.full = False
        self._query = query
        self._room = max_bytes

    def offer(self, sequence: int, record: Record) -> None:
        """Take the record in if it is asked for and there is room."""
        if not self.full and _asked(record, self._query):
            self._room -= len(record.model_dump_json()) + 1
            self.full = bool(self.records) and (self._room < 0 or len(self.records) == self._query.limit)
            if not self.full:
                self.records.append(record)
        if not self.full:
            self.cursor = sequence + 1

    def answer(self, *, more: bool) -> Sandboxes:
        """The page; `more` records were not offered yet."""
        return Sandboxes(sandboxes=self.records, more=self.full or more, cursor=self.cursor)


def _asked(record: Record, query: ListSandboxes) -> bool:
    gone = record.state is State.DESTROYED
    wanted = (query.gone or not gone) if query.state is None else record.state is query.state
    return wanted and query.job in {None, record.spec.job}


def _log(
    name: str,
    *,
    max_age: float,
    max_bytes: int,
    max_msgs_per_subject: int = -1,
    deny_delete: bool = False,
    deny_purge: bool = False,
) -> StreamConfig:
    return StreamConfig(
        name=name,
        subjects=subjects.STREAMS[name],
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_age=max_age,
        max_bytes=max_bytes,
        max_msgs_per_subject=max_msgs_per_subject,
        allow_direct=True,
        deny_delete=deny_delete,
        deny_purge=deny_purge,
    )


def _work() -> StreamConfig:
    """A queue: what is acknowledged is gone."""
    return StreamConfig(
        name="JOBS",
        subjects=subjects.STREAMS["JOBS"],
        storage=StorageType.FILE,
        retention=RetentionPolicy.WORK_QUEUE,
        duplicate_window=120,
        allow_direct=True,
    )


def _bucket(name: str, *, max_age: float) -> StreamConfig:
    """A key-value bucket as NATS ADR-8 lays it out, of history 1, whose entries may carry `Nats-TTL`."""
    return StreamConfig(
        name="KV_" + name,
        subjects=[subjects.kv(name, ">")],
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_age=max_age,
        max_msgs_per_subject=1,
        allow_rollup_hdrs=True,
        allow_direct=True,
        allow_msg_ttl=True,
        deny_delete=True,
    )


def _refused(error: APIError, config: StreamConfig) -> InfraError:
    if error.err_code in _TOO_FEW or error.code == _UNAVAILABLE:
        what = f"{config.name} on {config.num_replicas} servers"
        return BrokerDown(f"the broker cannot have {what} now: {error.description}")
    if error.err_code == _NO_STORAGE:
        return DiskFull(
            f"the broker cannot reserve {config.max_bytes} bytes for {config.name}: free some disk"
        )
    return InfraError(f"the broker refused stream {config.name}: {error.description}")


def _subject(key: str) -> str:
    return subjects.kv(subjects.REGISTRY_BUCKET, key)


def _record(stored: Stored) -> Record | None:
    """None for a deleted key (`KV-Operation`) and for a marker of one whose time ran out."""
    return Record.model_validate_json(stored.data) if stored.data else None
