"""Who a connection is: a role, its ids and an nkey seed, kept in a file that only its owner may read.

The seed never travels: the broker sends a nonce, the client signs it, and iam checks the signature against
the public key that it enrolled (NATS documentation, "NKeys").
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Self

import nkeys

from dsec.bus import subjects
from dsec.bus.errors import Unauthenticated
from dsec.bus.files import write_private


class Role(StrEnum):
    """What a connection may do; the exact rights are in `dsec.plugins.iam.rights`."""

    TENANT = "tenant"
    CORE = "core"
    SCHEDULER = "scheduler"
    JOURNAL = "journal"
    EDGE = "edge"
    DRIVER = "driver"
    IAM = "iam"
    OPERATOR = "operator"


def new_seed(prefix: int = nkeys.PREFIX_BYTE_USER) -> str:
    """A fresh nkey seed; `prefix` is one of nkeys' PREFIX_BYTE constants (user, account…)."""
    return bytes(nkeys.encode_seed(os.urandom(32), prefix)).decode()


def public_key(seed: str) -> str:
    """The public nkey of a seed: `U…` for a user, `A…` for an account. Raises Unauthenticated."""
    try:
        key: bytes = nkeys.from_seed(bytearray(seed.encode())).public_key
    except (nkeys.NkeysError, ValueError) as error:
        raise Unauthenticated.during("not an nkey seed", error) from error
    return key.decode()


@dataclass(frozen=True, slots=True)
class Credentials:
    """One identity. Tenants have `project` and `principal`, edges have `node`, drivers have `node` and the
    `principal` `d-<node>-<name>`."""

    role: Role
    seed: str = field(repr=False)
    project: str = ""
    principal: str = ""
    node: str = ""
    source: Path | None = field(default=None, repr=False, compare=False)
    """The file that they came from: what replaces it there is used from the next connect on."""

    @classmethod
    def new(cls, role: Role, *, project: str = "", principal: str = "", node: str = "") -> Self:
        """Fresh credentials; they are worth nothing until iam has enrolled their public key."""
        return cls(Role(role), new_seed(), project, principal, node)

    def renewed(self) -> Self:
        """The same identity with another key, which iam has yet to hear of."""
        return replace(self, seed=new_seed())

    def current(self) -> Self:
        """What its file holds now; itself when it has none, or none of this identity. Blocks."""
        try:
            fresh = self if self.source is None else self.load(self.source)
        except Unauthenticated:
            return self
        return fresh if (fresh.role, fresh.owner) == (self.role, self.owner) else self

    @property
    def public(self) -> str:
        """The public nkey, which names this identity to iam. Raises Unauthenticated for a broken seed."""
        return public_key(self.seed)

    @property
    def owner(self) -> str:
        """The name in subjects: a tenant's principal, an edge's node, else the role."""
        return self.principal or self.node or self.role.value

    @property
    def inbox(self) -> str:
        """The private inbox prefix, `_INBOX.<owner>`."""
        return subjects.inbox(self.owner)

    def save(self, path: Path) -> None:
        """Write to `path` with mode 0600, replacing it whole. Raises OSError."""
        fields = {name: value for name, value in asdict(self).items() if name != "source"}
        write_private(path, json.dumps(fields, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises Unauthenticated: no file, not credentials, or readable by group or others."""
        try:
            with path.open(encoding="utf-8") as file:
                _refuse_open_mode(path, os.fstat(file.fileno()).st_mode)
                fields = json.load(file)
            return cls(**(fields | {"role": Role(fields["role"]), "source": path}))
        except FileNotFoundError:
            raise Unauthenticated(f"no credentials at {path}; `dsec up` writes them there") from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise Unauthenticated.during(f"{path} cannot be read as credentials", error) from error


def _refuse_open_mode(path: Path, mode: int) -> None:
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Unauthenticated(
            f"{path} has mode {stat.S_IMODE(mode):04o}: others can read the secret; run `chmod 600 {path}`"
        )
