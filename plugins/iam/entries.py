"""What iam keeps, as entries of the bucket `iam`: who may connect, projects, answers given. No secret.

| key | value |
|---|---|
| `member.<owner>` | a Member: who has which public key |
| `project.<project>` | parent and quota of a project that somebody made |
| `answer.<project>.<operation>` | digest and answer of a change, for 24 h |
| `moved.<issuer>` | the store of a home of an older version that was taken over |

A deleted entry leaves an empty one, which lasts for a week: replicas that follow the bucket must see it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import orjson

from dsec.bus.nats.credentials import Credentials, Role

REMEMBERED: Final = 24 * 3600.0
"""Seconds for which the answer to an operation is known."""
DELETED: Final = {"KV-Operation": "DEL", "Nats-TTL": "168h"}
BEHIND: Final = 6 * 24 * 3600.0
"""Seconds after which a replica may have missed that something was deleted."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Credentials without their secret. `rights`: nouns it may ask under; None: all.

    `until`: the key is accepted until then (unix seconds), 0.0: without end.
    """

    role: Role
    project: str = ""
    principal: str = ""
    node: str = ""
    rights: tuple[str, ...] | None = None
    until: float = 0.0

    @property
    def owner(self) -> str:
        """As Credentials.owner."""
        return self.principal or self.node or self.role.value


@dataclass(frozen=True, slots=True)
class Member:
    """A name and its key. What the operator made has all rights (None) and no maker.

    `former`: the key before, accepted until `former_until` (unix seconds).
    """

    owner: str
    public: str
    role: str
    project: str = ""
    principal: str = ""
    node: str = ""
    rights: tuple[str, ...] | None = None
    by: str = ""
    created: float = 0.0
    former: str = ""
    former_until: float = 0.0

    @classmethod
    def of(cls, who: Credentials, *, created: float) -> Self:
        """As the operator makes them."""
        return cls(
            who.owner, who.public, who.role.value, who.project, who.principal, who.node, created=created
        )

    @property
    def key(self) -> str:
        return f"member.{self.owner}"

    def encoded(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decoded(cls, value: bytes) -> Self:
        """Fields that a newer version added are left out."""
        fields = {name: given for name, given in orjson.loads(value).items() if name in cls.__slots__}
        rights = fields.get("rights")
        return cls(**(fields | {"rights": None if rights is None else tuple(rights)}))

    def identity(self, *, until: float = 0.0) -> Identity:
        """What the key gives."""
        return Identity(Role(self.role), self.project, self.principal, self.node, self.rights, until)


def answer_entry(digest: str, answer: bytes, at: float) -> bytes:
    """The value of `answer.…`; `at` in unix seconds."""
    return orjson.dumps({"digest": digest, "answer": base64.b64encode(answer).decode(), "at": at})


def answer_in(value: bytes) -> tuple[str, bytes, float]:
    """Digest, answer and time."""
    fields: dict[str, Any] = orjson.loads(value)
    return str(fields["digest"]), base64.b64decode(fields["answer"]), float(fields["at"])


def headers_of(key: str, value: bytes) -> Mapping[str, str]:
    """With which an entry is written; an empty value deletes."""
    if not value:
        return DELETED
    return {"Nats-TTL": f"{REMEMBERED:.0f}s"} if key.startswith("answer.") else {}
