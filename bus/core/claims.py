"""Claims on operation ids: what makes a repeated create return the first answer, whichever core gets it.

A claim is an entry `<project>.<operation>` of the bucket `ops`, written by compare-and-set on its revision.
It names the sandbox as it is made (docs/adr/0011-a-claim-names-its-sandbox.md). An empty one was left by a
core of an older version that died before it placed; whoever sees it places for it. Secrets are no part of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from dsec.bus import subjects
from dsec.bus.errors import BrokerDown, Conflict, DeadlineExceeded, InfraError, NodeLost
from dsec.bus.nats.directget import TIMEOUT, DirectGet, answer_of, ask, unavailable
from dsec.bus.transport import Bus, Received

_STREAM: Final = f"KV_{subjects.OPS_BUCKET}"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
PAGE: Final = 1000
PAGE_BYTES: Final = 1 << 22
ATTEMPTS: Final = 100
PAUSE: Final = 0.02
"""Seconds that a write under way is left to be stored."""
_WRONG_REVISION: Final = {10071, 10164}
"""JetStream's error codes for a lost compare-and-set."""


@dataclass(frozen=True, slots=True)
class Cover:
    """`core` answers in the quotas of the project for `cost` of the sandbox, `until` then (unix ms)."""

    core: str
    until: int
    cost: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """`digest` tells the request apart; `sandbox` is what the key stands for."""

    project: str
    operation: str
    digest: str
    sandbox: str = ""
    revision: int = 0
    cover: Cover | None = None


class Claims:
    """Methods raise BrokerDown and DeadlineExceeded; each may be repeated."""

    def __init__(self, bus: Bus, reader: DirectGet) -> None:
        self._bus = bus
        self._reader = reader

    async def get(self, project: str, operation: str) -> Claim | None:
        """The claim as the leader has it: who lost the race to write it must see the winner's."""
        subject = _subject(project, operation)
        stored = await self._reader.newest(_STREAM, subject)
        if stored is None:
            return None
        body = orjson.loads(stored.data)
        return Claim(
            project, operation, body["digest"], body["sandbox"], stored.sequence, _cover(body.get("cover"))
        )

    async def claim(self, project: str, operation: str, digest: str, sandbox: str = "") -> Claim:
        """The operation's claim, made here for `sandbox` unless it exists.

        Raises Conflict when it is another request's.
        """
        made = await self._write(Claim(project, operation, digest, sandbox))
        claim = made or await self.find(project, operation, digest)
        if claim is None:
            return await self.claim(project, operation, digest, sandbox)  # it expired between the two steps
        return claim

    async def find(self, project: str, operation: str, digest: str) -> Claim | None:
        """The operation's claim, if there is one. Raises Conflict when it is another request's."""
        claim = await self.get(project, operation)
        if claim is not None and claim.digest != digest:
            raise Conflict(f"key {operation!r} was used with another request; choose a new one", field="op")
        return claim

    async def settle(self, claim: Claim, sandbox: str) -> Claim:
        """The claim naming `sandbox`, or the one that another core settled first.

        A leader refuses by what it has proposed to the replicas and reads what is stored, so for a moment it
        may tell the very claim that it called out of date.
        """
        for _ in range(ATTEMPTS):
            settled = await self._write(replace(claim, sandbox=sandbox))
            if settled is None:
                settled = await self.get(claim.project, claim.operation)
            if settled is None or not settled.sandbox:
                break
            if settled.revision != claim.revision:
                return settled
            await asyncio.sleep(PAUSE)
        raise InfraError("the claim on the key was lost; send the request again")

    async def covered(self, claim: Claim, cover: Cover | None) -> Claim | None:
        """The claim with another cover; None when somebody else has changed it."""
        return await self._write(replace(claim, cover=cover))

    async def covers(self, project: str, since: int) -> list[tuple[str, Cover]]:
        """Sandboxes and covers of the project's claims from stream sequence `since` on."""
        found: list[tuple[str, Cover]] = []
        while True:
            batch = await self._reader.whole(
                _STREAM,
                subjects.kv(subjects.OPS_BUCKET, f"{project}.>"),
                since,
                count=PAGE,
                max_bytes=PAGE_BYTES,
            )
            for body in (orjson.loads(stored.data) for stored in batch.messages if stored.data):
                cover = _cover(body.get("cover"))
                if cover is not None:
                    found.append((body["sandbox"], cover))
            if not batch.pending or not batch.messages:
                return found
            since = batch.messages[-1].sequence + 1

    async def _write(self, claim: Claim) -> Claim | None:
        """Compare-and-set; None when the entry has another revision than the claim's."""
        body = {"digest": claim.digest, "sandbox": claim.sandbox}
        value = orjson.dumps(body | ({"cover": claim.cover} if claim.cover else {}))
        subject = _subject(claim.project, claim.operation)
        answer = answer_of(await self._put(subject, value, {_EXPECTED: str(claim.revision)}))
        error = answer.get("error")
        if error is None:
            return Claim(
                claim.project, claim.operation, claim.digest, claim.sandbox, int(answer["seq"]), claim.cover
            )
        if error.get("err_code") in _WRONG_REVISION:
            return None
        raise InfraError(f"the broker refused the claim: {error.get('description')}")

    async def _put(self, subject: str, value: bytes, headers: dict[str, str]) -> Received:
        """The broker's answer; `ask` is dearer, and needed only when the broker is away."""
        with contextlib.suppress(BrokerDown, DeadlineExceeded, NodeLost):
            answer = await self._bus.request(subject, value, timeout=TIMEOUT, headers=headers)
            if not unavailable(answer):
                return answer
        return await ask(self._bus, subject, value, headers)


def _cover(told: dict[str, Any] | None) -> Cover | None:
    return None if told is None else Cover(told["core"], told["until"], tuple(told["cost"]))


def _subject(project: str, operation: str) -> str:
    return subjects.kv(subjects.OPS_BUCKET, subjects.ops_key(project, operation))
