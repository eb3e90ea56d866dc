"""Reads of a stream without a consumer: JetStream's Direct Get, single and batched.

A batch is one request and many answers on one inbox, the last of status 204; protocol: NATS ADR-31.
A stream takes 1,000 consumers at most and each lingers, so no read path of the platform makes one.

Any replica answers a Direct Get, also one that lags. What must not miss an acknowledged write reads with
`newest` or `whole`, which ask the stream's leader; docs/adr/0014-fresh-reads.md tells which reads those are.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

import orjson

from dsec.bus import ids, subjects
from dsec.bus.errors import BrokerDown, DeadlineExceeded, InfraError, NodeLost
from dsec.bus.nats.headers import parse_headers
from dsec.bus.transport import Bus, Received

TIMEOUT: Final = 2.0
"""Seconds that one attempt waits."""
PATIENCE: Final = 10.0
"""Seconds in which a broker that starts again, or elects a leader, is asked again."""
CATCH_UP: Final = 0.01
"""Seconds that a replica which lags is left before it is asked again; doubled each time."""
_NO_MESSAGE, _UNAVAILABLE = 10037, 503


ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as the stream keeps it."""

    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages in the order of the stream; `pending` matching ones follow the last of them."""

    messages: list[Stored]
    pending: int


@dataclass(slots=True)
class _Reading:
    done: asyncio.Future[int]
    messages: list[Stored] = field(default_factory=list)


class DirectGet:
    """Reads streams over one standing subscription. All methods raise BrokerDown, DeadlineExceeded."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._prefix = f"{bus.inbox}.get-{ids.tail(8)}."
        self._readings: dict[str, _Reading] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus) -> AsyncIterator[Self]:
        self = cls(bus)
        subscription = await bus.subscribe(self._prefix + "*", self._receive)
        try:
            yield self
        finally:
            await subscription.unsubscribe()

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The newest message of `subject`, None if there is none."""
        return await self._one(subjects.api(f"DIRECT.GET.{stream}.{subject}"), b"")

    async def newest(self, stream: str, subject: str) -> Stored | None:
        """The newest message of `subject` (wildcards allowed) as the stream's leader has it.

        Needs the right to ask `STREAM.MSG.GET`.
        """
        body = orjson.dumps({"last_by_subj": subject})
        answer = answer_of(await ask(self._bus, subjects.api(f"STREAM.MSG.GET.{stream}"), body))
        if error := answer.get("error"):
            if error.get("err_code") == _NO_MESSAGE:
                return None
            raise InfraError(f"the broker refused a read of {stream}: {error.get('description')}")
        told = answer["message"]
        data = base64.b64decode(told.get("data") or "")
        headers = parse_headers(base64.b64decode(told.get("hdrs") or ""))
        return Stored(told["subject"], int(told["seq"]), data, headers)

    async def exists(self, stream: str, subject: str) -> bool:
        """Whether the stream's leader has a message of `subject`; the right to `STREAM.INFO` is enough."""
        body = orjson.dumps({"subjects_filter": subject})
        answer = answer_of(await ask(self._bus, subjects.api(f"STREAM.INFO.{stream}"), body))
        if "state" not in answer:
            raise InfraError(f"the broker refused to tell of {stream}: {answer.get('error')}")
        return bool(answer["state"].get("subjects"))

    async def next(self, stream: str, subject: str, sequence: int) -> Stored | None:
        """The first message of `subject` (wildcards allowed) at `sequence` or later."""
        body = orjson.dumps({"seq": max(1, sequence), "next_by_subj": subject})
        return await self._one(subjects.api(f"DIRECT.GET.{stream}"), body)

    async def batch(self, stream: str, subject: str, sequence: int, *, count: int, max_bytes: int) -> Batch:
        """Up to `count` messages of `subject` from `sequence` on; about `max_bytes` in all, at least one."""
        body = {"seq": max(1, sequence), "next_by_subj": subject, "batch": count, "max_bytes": max_bytes}
        return await patiently(lambda: self._batch(stream, orjson.dumps(body)))

    async def whole(self, stream: str, subject: str, sequence: int, *, count: int, max_bytes: int) -> Batch:
        """As `batch`; when nothing is pending, nothing is missing that the leader had as this was called.

        Such a last batch may be twice as long. A message that was overwritten between two batches may have
        moved behind both, to where the next reading begins. Needs the right to ask `STREAM.MSG.GET`.
        """
        got = await self.batch(stream, subject, sequence, count=count, max_bytes=max_bytes)
        pause, until = CATCH_UP, asyncio.get_running_loop().time() + PATIENCE
        while not got.pending:
            cursor = got.messages[-1].sequence + 1 if got.messages else sequence
            last = await self.newest(stream, subject)
            if last is None or last.sequence < cursor:
                return got
            rest = await self.batch(stream, subject, cursor, count=count, max_bytes=max_bytes)
            got = Batch(got.messages + rest.messages, rest.pending)
            if rest.messages and rest.messages[-1].sequence >= last.sequence:
                return got
            if asyncio.get_running_loop().time() > until:
                raise DeadlineExceeded(f"the replicas of {stream} lag behind their leader; read again")
            await asyncio.sleep(pause)
            pause *= 2
        return got

    async def _batch(self, stream: str, body: bytes) -> Batch:
        token = ids.tail()
        reading = _Reading(asyncio.get_running_loop().create_future())
        self._readings[token] = reading
        try:
            await self._bus.publish(subjects.api(f"DIRECT.GET.{stream}"), body, reply=self._prefix + token)
            async with asyncio.timeout(TIMEOUT):
                pending = await reading.done
        except TimeoutError:
            raise DeadlineExceeded(f"the broker did not finish a read of {stream}; read again") from None
        finally:
            del self._readings[token]
        return Batch(reading.messages, pending)

    async def _one(self, api: str, body: bytes) -> Stored | None:
        answer = await ask(self._bus, api, body)
        headers = answer.headers or {}
        if "Status" in headers:
            _refusal(headers)
            return None
        return _stored(answer, headers)

    def _receive(self, message: Received) -> None:
        reading = self._readings.get(message.subject[len(self._prefix) :])
        if reading is None or reading.done.done():
            return
        headers = message.headers or {}
        if "Status" not in headers:
            reading.messages.append(_stored(message, headers))
            return
        try:
            _refusal(headers)
            reading.done.set_result(int(headers.get("Nats-Num-Pending", "0")))
        except InfraError as error:
            reading.done.set_exception(error)


def _stored(message: Received, headers: Mapping[str, str]) -> Stored:
    return Stored(headers["Nats-Subject"], int(headers["Nats-Sequence"]), message.data, headers)


def _refusal(headers: Mapping[str, str]) -> None:
    """Raises unless the status says "end of batch" (204) or "nothing found" (404)."""
    status, why = headers["Status"], headers.get("Description", "")
    if status == "503":
        raise BrokerDown("JetStream does not answer: the stream is missing, or has no leader now")
    if status not in {"204", "404"}:
        raise InfraError(f"the broker refused a read: {status} {why}")


async def patiently(attempt: Callable[[], Awaitable[ValueT]]) -> ValueT:
    """The outcome of `attempt`, repeated while the broker is away, for `PATIENCE` seconds."""
    until = asyncio.get_running_loop().time() + PATIENCE
    pause = 0.02
    while True:
        try:
            return await attempt()
        except (BrokerDown, DeadlineExceeded):
            if asyncio.get_running_loop().time() > until:
                raise
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
        pause = min(1.0, 2 * pause)


async def ask(bus: Bus, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> Received:
    """What JetStream answers; asked again while the broker is away, or a stream has no leader.

    Raises BrokerDown, DeadlineExceeded.

    A write that is asked again may have been done: use compare-and-set and look who won.
    """

    async def once() -> Received:
        try:
            answer = await bus.request(subject, data, timeout=TIMEOUT, headers=headers)
        except NodeLost as error:
            raise BrokerDown("JetStream does not answer: the stream is missing or has no leader") from error
        if unavailable(answer):
            raise BrokerDown("JetStream is not available now: it elects a leader, or most servers are away")
        return answer

    return await patiently(once)


def unavailable(answer: Received) -> bool:
    """Whether an answer of JetStream says that it may do what was asked of it in some seconds."""
    if b'"error"' not in answer.data:
        return False
    error = answer_of(answer).get("error")
    return isinstance(error, dict) and error.get("code") == _UNAVAILABLE


def answer_of(message: Received) -> dict[str, Any]:
    """The JSON body of a JetStream API or publish answer. Raises InfraError when it is not one."""
    try:
        body = orjson.loads(message.data)
    except orjson.JSONDecodeError as error:
        raise InfraError(f"not an answer of JetStream: {message.data[:80]!r}") from error
    return dict(body)
