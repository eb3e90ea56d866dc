"""The table of nodes, bucket `nodes`: whose life counts, decided by compare-and-set on one entry a node.

A life of a node is its epoch. The node begins one by writing it, the watcher ends one by writing `fenced`;
whoever is first wins, and the other one sees it (docs/adr/0005-fencing.md). What carries an epoch up to
`fenced` is failed, whether its record says so yet or not; up to `swept` the records say so.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import Field

from dsec.bus import subjects
from dsec.bus.errors import BrokerDown, InfraError, NodeLost
from dsec.bus.messages import VERSION, Message
from dsec.bus.nats.directget import DirectGet, answer_of, ask
from dsec.bus.transport import Bus

STREAM: Final = f"KV_{subjects.NODES_BUCKET}"
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
WRONG_REVISION: Final = frozenset({10071, 10164})
"""JetStream's error codes for a lost compare-and-set."""
_NO_MESSAGE: Final = 10037
_PAGE: Final = 1000


class NodeEntry(Message):
    """One node. `by` and `reason` tell who declared its last fence and why."""

    v: int = VERSION
    node: str
    epoch: int = Field(description="the node's newest life")
    fenced: int = Field(0, description="lives up to this one were declared failed")
    swept: int = Field(0, description="the records of lives up to this one say so")
    since: int = Field(description="unix ms at which the newest life began")
    failed: int = Field(0, description="unix ms at which a life was last declared failed")
    by: str = ""
    reason: str = ""

    @property
    def alive(self) -> bool:
        return self.epoch > self.fenced


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry as the bucket has it."""

    entry: NodeEntry
    revision: int


def joined(entry: NodeEntry | None, node: str, epoch: int, now: int) -> NodeEntry:
    """The entry of a node that begins a life: `epoch`, or a later one when that one was had before."""
    if entry is None:
        return NodeEntry(node=node, epoch=epoch, since=now)
    return entry.model_copy(update={"epoch": max(epoch, entry.epoch + 1), "since": now})


def failed(entry: NodeEntry, now: int, *, by: str, reason: str) -> NodeEntry:
    """The entry of a node whose present life is declared failed."""
    return entry.model_copy(update={"fenced": entry.epoch, "failed": now, "by": by, "reason": reason})


class Nodes:
    """Reads and writes of the table. Methods raise BrokerDown, DeadlineExceeded, InfraError."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def get(self, node: str, *, timeout: float) -> Kept | None:
        """The entry as the stream's leader has it: an answer proves contact with who decides. One attempt."""
        body = orjson.dumps({"last_by_subj": _subject(node)})
        try:
            answer = await self._bus.request(subjects.api(f"STREAM.MSG.GET.{STREAM}"), body, timeout=timeout)
        except NodeLost as error:
            raise BrokerDown(f"{STREAM} is missing, or has no leader now") from error
        return _kept(answer_of(answer))

    async def all(self, reader: DirectGet) -> dict[str, Kept]:
        """Every entry, by node, as the leader has them."""
        found: dict[str, Kept] = {}
        sequence = 0
        while True:
            batch = await reader.whole(STREAM, _subject("*"), sequence, count=_PAGE, max_bytes=1 << 20)
            for stored in batch.messages:
                if stored.data:
                    entry = NodeEntry.model_validate_json(stored.data)
                    found[entry.node] = Kept(entry, stored.sequence)
            if not batch.pending or not batch.messages:
                return found
            sequence = batch.messages[-1].sequence + 1

    async def put(self, entry: NodeEntry, revision: int) -> Kept | None:
        """Compare-and-set (0: there is none yet); None when somebody else was first."""
        headers = {EXPECTED: str(revision)}
        body = answer_of(
            await ask(self._bus, _subject(entry.node), entry.model_dump_json().encode(), headers)
        )
        error = body.get("error")
        if error is None:
            return Kept(entry, int(body["seq"]))
        if error.get("err_code") in WRONG_REVISION:
            return None
        raise InfraError(f"the broker refused the entry of {entry.node}: {error.get('description')}")


def _kept(body: dict[str, Any]) -> Kept | None:
    error = body.get("error")
    if error is None:
        message = body["message"]
        entry = NodeEntry.model_validate_json(base64.b64decode(message["data"]))
        return Kept(entry, int(message["seq"]))
    if error.get("err_code") == _NO_MESSAGE:
        return None
    raise InfraError(f"the broker refused a read of {STREAM}: {error.get('description')}")


def _subject(node: str) -> str:
    return subjects.kv(subjects.NODES_BUCKET, node)
