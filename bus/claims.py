"""Claims on operation ids: what makes a repeated create return the first answer, whichever core gets it.

A claim is an entry `<project>.<operation>` of the bucket `ops`, written by compare-and-set on its revision.
It is made empty before placement and names the sandbox afterwards; a claim that stayed empty belongs to a
core that died, and whoever sees it places for it. Secrets are no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import orjson

from dsec.bus import subjects
from dsec.bus.directget import DirectGet, answer_of, ask
from dsec.bus.errors import Conflict, InfraError
from dsec.bus.transport import Bus

_STREAM: Final = f"KV_{subjects.OPS_BUCKET}"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_WRONG_REVISION: Final = {10071, 10164}
"""JetStream's error codes for a lost compare-and-set."""


@dataclass(frozen=True, slots=True)
class Claim:
    """`digest` tells the request apart; `sandbox` is empty until placement has decided it."""

    project: str
    operation: str
    digest: str
    sandbox: str = ""
    revision: int = 0


class Claims:
    """Methods raise BrokerDown and DeadlineExceeded; each may be repeated."""

    def __init__(self, bus: Bus, reader: DirectGet) -> None:
        self._bus = bus
        self._reader = reader

    async def get(self, project: str, operation: str) -> Claim | None:
        """The claim as it stands."""
        subject = _subject(project, operation)
        stored = await self._reader.last(_STREAM, subject)
        if stored is None:
            return None
        body = orjson.loads(stored.data)
        return Claim(project, operation, body["digest"], body["sandbox"], stored.sequence)

    async def claim(self, project: str, operation: str, digest: str) -> Claim:
        """The operation's claim, made here unless it exists. Raises Conflict when it is another request's."""
        wanted = Claim(project, operation, digest)
        made = await self._write(wanted)
        claim = made or await self.get(project, operation)
        if claim is None:
            return await self.claim(project, operation, digest)  # it expired between the two steps
        if claim.digest != digest:
            raise Conflict(f"key {operation!r} was used with another request; choose a new one", field="op")
        return claim

    async def settle(self, claim: Claim, sandbox: str) -> Claim:
        """The claim naming `sandbox`, or the one that another core settled first."""
        settled = await self._write(replace(claim, sandbox=sandbox))
        if settled is None:
            settled = await self.get(claim.project, claim.operation)
        if settled is None or not settled.sandbox:
            raise InfraError("the claim on the key was lost; send the request again")
        return settled

    async def _write(self, claim: Claim) -> Claim | None:
        """Compare-and-set; None when the entry has another revision than the claim's."""
        value = orjson.dumps({"digest": claim.digest, "sandbox": claim.sandbox})
        subject = _subject(claim.project, claim.operation)
        body = answer_of(await ask(self._bus, subject, value, {_EXPECTED: str(claim.revision)}))
        error = body.get("error")
        if error is None:
            return replace(claim, revision=int(body["seq"]))
        if error.get("err_code") in _WRONG_REVISION:
            return None
        raise InfraError(f"the broker refused the claim: {error.get('description')}")


def _subject(project: str, operation: str) -> str:
    return f"$KV.{subjects.OPS_BUCKET}.{subjects.ops_key(project, operation)}"
