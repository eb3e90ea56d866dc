"""The bucket `iam`: identities and projects, for any number of iam on any number of machines.

Every iam follows the bucket into memory (`tables`) and answers from there, but never from less than what was
acknowledged before it was asked: `fresh` first asks the bucket's leader how far it is, once for all who wait.
A change is a transaction over everything that was read: its entries go in as one atomic batch, and only if
nothing at all was written since (`Nats-Expected-Last-Sequence`; NATS ADR-50). Whoever loses does it again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Self, TypeVar

import orjson

from dsec.bus import registry, subjects
from dsec.bus.errors import BrokerDown, DeadlineExceeded, InfraError, NodeLost
from dsec.bus.ids import tail
from dsec.bus.nats.cluster import survey
from dsec.bus.nats.directget import PATIENCE, TIMEOUT, DirectGet, answer_of, ask, patiently
from dsec.bus.spec import MIB
from dsec.bus.transport import Bus, Received
from dsec.plugins.iam.entries import BEHIND, Identity, headers_of
from dsec.plugins.iam.tables import Tables

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

STREAM: Final = f"KV_{subjects.IAM_BUCKET}"
MOST_CHANGES: Final = 900
"""Entries that one transaction may write; JetStream takes 1,000."""
ATTEMPT: Final = 0.4
"""Seconds until a leader that does not answer is asked again."""
_ALL: Final = subjects.kv(subjects.IAM_BUCKET, ">")
_PREFIX: Final = subjects.kv(subjects.IAM_BUCKET, "")
_INFO: Final = subjects.api(f"STREAM.INFO.{STREAM}")
_GET: Final = subjects.api(f"STREAM.MSG.GET.{STREAM}")
_NOTHING_THERE: Final = 10037
_WRONG_SEQUENCE: Final = {10071, 10164}
_PAGE: Final = 1000


class _Outrun(Exception):
    """Somebody else wrote meanwhile."""


class Store:
    """Made by `running`. Methods raise InfraError, BrokerDown, DeadlineExceeded."""

    def __init__(self, bus: Bus, reader: DirectGet) -> None:
        self._bus = bus
        self._reader = reader
        self._tables = Tables()
        self._sequence = 0
        self._bucket = ""
        self._read_at = 0.0
        self._turn = asyncio.Lock()
        self._begun, self._done = 0, 0

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus) -> AsyncIterator[Self]:
        """Follows the bucket, which is made when there is none."""
        async with DirectGet.running(bus) as reader:
            store = cls(bus, reader)
            await _ensure(bus)
            await store.fresh()
            try:
                yield store
            finally:
                store._tables.close()

    async def find(self, public: str) -> Identity | None:
        """Who has this public nkey now."""
        return (await self.fresh()).find(public)

    async def fresh(self) -> Tables:
        """Everything that was acknowledged before this call, to be read before the next `await`."""
        needed = self._begun + 1
        async with self._turn:
            if self._done < needed:
                await self._read()
        return self._tables

    async def change(self, work: Callable[[Tables], ResultT]) -> ResultT:
        """What `work` returns, done in one transaction; raises what it raises.

        It runs again when somebody else was faster, and when it is unknown whether the bucket took it: it has
        to find its own earlier outcome.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        while True:
            try:
                return await self._attempt(work)
            except _Outrun:
                failure: InfraError = InfraError("others kept changing identities: try again")
            except (BrokerDown, DeadlineExceeded) as error:
                failure = error
            if loop.time() > until:
                raise failure
            await asyncio.sleep(random.uniform(0, 0.02))  # noqa: S311 - jitter, no secret

    async def _attempt(self, work: Callable[[Tables], ResultT]) -> ResultT:
        async with self._turn:
            await self._read()
            result, entries = self._tables.attempt(work)
            if entries:
                self._sequence = await self._write(entries)
                self._tables.apply(entries.items())
            return result

    # --- reading

    async def _read(self) -> None:
        self._begun += 1
        mine = self._begun
        await self._catch_up()
        self._done = mine

    async def _catch_up(self) -> None:
        """Take in all that the bucket's leader has at this moment."""
        bucket, last = await self._head()
        now = asyncio.get_running_loop().time()
        if bucket != self._bucket or last < self._sequence or now - self._read_at > BEHIND:
            self._tables.close()
            self._tables, self._sequence, self._bucket = Tables(), 0, bucket
        if last > self._sequence:
            news, reached = await self._news(self._sequence)
            self._tables.apply(news)
            self._sequence = max(last, reached)
        self._read_at = now

    async def _head(self) -> tuple[str, int]:
        """When the bucket was made, and its last sequence, in its leader's words."""
        answer = answer_of(await self._asked(_INFO))
        if "error" in answer:
            raise InfraError(f"the bucket of identities: {answer['error'].get('description')}")
        return str(answer["created"]), int(answer["state"]["last_seq"])

    async def _asked(self, subject: str) -> Received:
        """As `ask`, with less patience for one attempt: connections wait to be judged."""
        until = asyncio.get_running_loop().time() + PATIENCE
        while True:
            try:
                return await self._bus.request(subject, b"", timeout=ATTEMPT)
            except (NodeLost, BrokerDown, DeadlineExceeded) as error:
                if asyncio.get_running_loop().time() > until:
                    raise BrokerDown.during("the bucket of identities", error) from error
            await asyncio.sleep(0.02)

    async def _news(self, sequence: int) -> tuple[list[tuple[str, bytes]], int]:
        """What follows `sequence`: most of it from any server, the end of it from the leader."""
        news: list[tuple[str, bytes]] = []
        if not sequence:
            batch = await self._page(1)
            while batch:
                news += [(subject, data) for _, subject, data in batch]
                sequence = batch[-1][0]
                batch = await self._page(sequence + 1)
        while found := await self._next(sequence + 1):
            sequence = found[0]
            news.append(found[1:])
        return [(subject.removeprefix(_PREFIX), data) for subject, data in news], sequence

    async def _page(self, sequence: int) -> list[tuple[int, str, bytes]]:
        batch = await self._reader.batch(STREAM, _ALL, sequence, count=_PAGE, max_bytes=4 * MIB)
        return [(one.sequence, one.subject, one.data) for one in batch.messages]

    async def _next(self, sequence: int) -> tuple[int, str, bytes] | None:
        body = orjson.dumps({"seq": sequence, "next_by_subj": _ALL})
        answer = answer_of(await ask(self._bus, _GET, body))
        error = answer.get("error")
        if error and error.get("err_code") == _NOTHING_THERE:
            return None
        if error:
            raise InfraError(f"the broker refused a read of identities: {error.get('description')}")
        message = answer["message"]
        return int(message["seq"]), str(message["subject"]), base64.b64decode(message.get("data", ""))

    # --- writing

    async def _write(self, entries: Mapping[str, bytes]) -> int:
        """The sequence of the last of them. Raises _Outrun."""
        batch, last = tail(), len(entries)
        for number, (key, value) in enumerate(entries.items(), 1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number), **headers_of(key, value)}
            if number == 1:
                headers["Nats-Expected-Last-Sequence"] = str(self._sequence)
            if number < last:
                await self._bus.publish(_PREFIX + key, value, headers=headers)
                continue
            return await self._commit(_PREFIX + key, value, {**headers, "Nats-Batch-Commit": "1"})
        return self._sequence

    async def _commit(self, subject: str, value: bytes, headers: Mapping[str, str]) -> int:
        try:
            answer = answer_of(await self._bus.request(subject, value, timeout=TIMEOUT, headers=headers))
        except NodeLost as lost:
            raise BrokerDown("the bucket of identities has no leader now") from lost
        error = answer.get("error")
        if error and error.get("err_code") in _WRONG_SEQUENCE:
            raise _Outrun
        if error and error.get("code") == 503:
            raise BrokerDown(f"the bucket of identities: {error.get('description')}")
        if error:
            raise InfraError(f"the broker refused a change of identities: {error.get('description')}")
        return int(answer["seq"])


async def _ensure(bus: Bus) -> None:
    """Make the bucket unless it is there, with as many replicas as the servers allow."""
    replicas = (await patiently(lambda: survey(bus))).replicas
    held = answer_of(await ask(bus, _INFO, b"")).get("config")
    wanted = {**(held or registry.identities().as_dict()), "num_replicas": replicas}
    if held is None:
        verb = "CREATE"
    elif int(held["num_replicas"]) < replicas:
        verb = "UPDATE"
    else:
        return
    await patiently(lambda: _asked_for(bus, verb, wanted))


async def _asked_for(bus: Bus, verb: str, config: Mapping[str, Any]) -> None:
    answer = answer_of(
        await bus.request(subjects.api(f"STREAM.{verb}.{STREAM}"), orjson.dumps(config), timeout=5)
    )
    error = answer.get("error")
    if error and int(error.get("code", 0)) >= 500:
        raise BrokerDown(f"the bucket of identities: {error.get('description')}")
    if error and error.get("err_code") != registry.IN_USE:
        raise InfraError(f"the bucket of identities: {error.get('description')}")
