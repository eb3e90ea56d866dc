"""Who is known: one row per identity in a SQLite file, keyed by the public nkey and by the name.

Any number of processes use it: `dsec up` looks keys up, the command line adds principals meanwhile. Names are
unique in an installation since inbox prefixes and audit entries are made of them.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsec.bus.credentials import Credentials, Role
from dsec.bus.errors import Conflict, DiskFull, InfraError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS identity (
  public TEXT PRIMARY KEY, owner TEXT NOT NULL UNIQUE,
  role TEXT NOT NULL, project TEXT NOT NULL, principal TEXT NOT NULL, node TEXT NOT NULL,
  created REAL NOT NULL
) STRICT
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """Credentials without their secret."""

    role: Role
    project: str = ""
    principal: str = ""
    node: str = ""

    @property
    def owner(self) -> str:
        """As Credentials.owner."""
        return self.principal or self.node or self.role.value


class Store:
    """All methods block for well under a millisecond; they raise InfraError, DiskFull."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._open() as database:
            database.execute(_SCHEMA)
        path.chmod(0o600)

    def find(self, public: str) -> Identity | None:
        """Who has this public nkey."""
        with self._open() as database:
            row = database.execute(
                "SELECT role, project, principal, node FROM identity WHERE public = ?", (public,)
            ).fetchone()
        return Identity(Role(row[0]), *row[1:]) if row else None

    def add(self, credentials: Credentials) -> None:
        """Enrol a new name. Raises Conflict when the name is taken."""
        try:
            self._insert("INSERT", credentials)
        except sqlite3.IntegrityError:
            raise Conflict(
                f"{credentials.owner} exists already: names are unique in an installation"
            ) from None

    def replace(self, credentials: Credentials) -> None:
        """Enrol a name, or give it this key; its old key is worth nothing at the next connect."""
        self._insert("INSERT OR REPLACE", credentials)

    def remove(self, owner: str) -> None:
        """Forget a name; connections that it has stay until they break."""
        with self._open() as database:
            database.execute("DELETE FROM identity WHERE owner = ?", (owner,))

    def _insert(self, verb: str, who: Credentials) -> None:
        row = (who.public, who.owner, who.role.value, who.project, who.principal, who.node, time.time())
        with self._open() as database:
            database.execute(f"{verb} INTO identity VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=5.0)) as database, database:
                yield database
        except sqlite3.OperationalError as error:
            kind = DiskFull if "full" in str(error) else InfraError
            raise kind.during(f"the identities in {self._path}", error) from error
