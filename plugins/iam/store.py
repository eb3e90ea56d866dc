"""Who is known, and which projects: one SQLite file that any number of processes on one machine use.

`dsec up` looks keys up, several iam processes change what is asked of them over the bus, the command line
adds principals meanwhile. Names are unique in an installation since inbox prefixes and audit entries are made
of them. Only public keys are kept. What the operator made has no row in `principal` and all rights; a project
without a row of its own lies below the root and has no quota.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsec.bus.errors import Conflict, DiskFull, InfraError
from dsec.bus.nats.credentials import Credentials, Role

_SCHEMA = """
CREATE TABLE IF NOT EXISTS identity (
  public TEXT PRIMARY KEY, owner TEXT NOT NULL UNIQUE,
  role TEXT NOT NULL, project TEXT NOT NULL, principal TEXT NOT NULL, node TEXT NOT NULL,
  created REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS identity_project ON identity (project, owner);
CREATE TABLE IF NOT EXISTS principal (
  owner TEXT PRIMARY KEY, rights TEXT NOT NULL, made_by TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS principal_made_by ON principal (made_by);
CREATE TABLE IF NOT EXISTS project (
  project TEXT PRIMARY KEY, parent TEXT NOT NULL, quota TEXT NOT NULL, created REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS project_parent ON project (parent);
CREATE TABLE IF NOT EXISTS answered (
  project TEXT NOT NULL, op TEXT NOT NULL, digest TEXT NOT NULL, answer BLOB NOT NULL, at REAL NOT NULL,
  PRIMARY KEY (project, op)
) STRICT;
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """Credentials without their secret. `rights`: nouns it may ask under; None: all."""

    role: Role
    project: str = ""
    principal: str = ""
    node: str = ""
    rights: tuple[str, ...] | None = None

    @property
    def owner(self) -> str:
        """As Credentials.owner."""
        return self.principal or self.node or self.role.value


class Store:
    """All methods block for about a millisecond; they raise InfraError, DiskFull."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.reading() as database:
            database.executescript(_SCHEMA)
        path.chmod(0o600)

    def find(self, public: str) -> Identity | None:
        """Who has this public nkey."""
        with self.reading() as database:
            row = database.execute(
                "SELECT role, project, principal, node, rights FROM identity"
                " LEFT JOIN principal USING (owner) WHERE public = ?",
                (public,),
            ).fetchone()
        if row is None:
            return None
        return Identity(Role(row[0]), row[1], row[2], row[3], rights_in(row[4]))

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
        with self.writing() as database:
            database.execute("DELETE FROM identity WHERE owner = ?", (owner,))
            database.execute("DELETE FROM principal WHERE owner = ?", (owner,))

    def _insert(self, verb: str, who: Credentials) -> None:
        row = (who.public, who.owner, who.role.value, who.project, who.principal, who.node, time.time())
        with self.writing() as database:
            database.execute(f"{verb} INTO identity VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The database, as it is now."""
        try:
            with contextlib.closing(
                sqlite3.connect(self._path, timeout=5.0, isolation_level=None)
            ) as database:
                yield database
        except sqlite3.OperationalError as error:
            kind = DiskFull if "full" in str(error) else InfraError
            raise kind.during(f"the identities in {self._path}", error) from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction that nobody else's comes between, from its first read on; undone by an error."""
        with self.reading() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")


def rights_in(column: str | None) -> tuple[str, ...] | None:
    """The column `rights`: words with spaces between them; no row means all."""
    return None if column is None else tuple(column.split())
