"""Claims on operation ids: what makes a repeated create return the first answer, whichever core gets it.

A claim is an entry `<project>.<operation>` of the bucket `ops`, written by compare-and-set on its revision.
It names the sandbox as it is made (docs/adr/0011-a-claim-names-its-sandbox.md). An empty one was left by a
core of an older version that died before it placed; whoever sees it places for it. Secrets are no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import orjson

from dsec.bus import subjects
from dsec.bus.directget import TIMEOUT, DirectGet, answer_of, ask
from dsec.bus.errors import BrokerDown, Conflict, DeadlineExceeded, InfraError, NodeLost
from dsec.bus.transport import Bus, Received

_STREAM: Final = f"KV_{subjects.OPS_BUCKET}"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_WRONG_REVISION: Final = {10071, 10164}
"""JetStream's error codes for a lost compare-and-set."""


@dataclass(frozen=True, slots=True)
class Claim:
    """`digest` tells the request apart; `sandbox` is what the key stands for.

    `until`, unix ms: so long a core answers for the sandbox in the quotas of its project; 0 without quotas.
    """

    project: str
    operation: str
    digest: str
    sandbox: str = ""
    revision: int = 0
    until: int = 0


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
        return Claim(
            project, operation, body["digest"], body["sandbox"], stored.sequence, body.get("until", 0)
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
        """The claim naming `sandbox`, or the one that another core settled first."""
        settled = await self._write(replace(claim, sandbox=sandbox))
        if settled is None:
            settled = await self.get(claim.project, claim.operation)
        if settled is None or not settled.sandbox:
            raise InfraError("the claim on the key was lost; send the request again")
        return settled

    async def renew(self, claim: Claim, *, until: int) -> Claim | None:
        """The claim with another `until`; None when somebody else has changed it."""
        return await self._write(replace(claim, until=until))

    async def _write(self, claim: Claim) -> Claim | None:
        """Compare-and-set; None when the entry has another revision than the claim's."""
        told = {"until": claim.until} if claim.until else {}
        value = orjson.dumps({"digest": claim.digest, "sandbox": claim.sandbox} | told)
        subject = _subject(claim.project, claim.operation)
        body = answer_of(await self._put(subject, value, {_EXPECTED: str(claim.revision)}))
        error = body.get("error")
        if error is None:
            return Claim(
                claim.project, claim.operation, claim.digest, claim.sandbox, int(body["seq"]), claim.until
            )
        if error.get("err_code") in _WRONG_REVISION:
            return None
        raise InfraError(f"the broker refused the claim: {error.get('description')}")

    async def _put(self, subject: str, value: bytes, headers: dict[str, str]) -> Received:
        """The broker's answer; `ask` is dearer, and needed only when the broker is away."""
        try:
            return await self._bus.request(subject, value, timeout=TIMEOUT, headers=headers)
        except (BrokerDown, DeadlineExceeded, NodeLost):
            return await ask(self._bus, subject, value, headers)


def _subject(project: str, operation: str) -> str:
    return f"$KV.{subjects.OPS_BUCKET}.{subjects.ops_key(project, operation)}"
