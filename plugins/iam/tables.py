"""A replica of the bucket `iam` in memory, with the questions and changes of one transaction.

`apply` takes entries in as the bucket has them. A change is attempted here, undone, and what it would have
written is returned: it comes to be when the bucket has taken it (`store`).
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import orjson

from dsec.bus.errors import Conflict
from dsec.bus.nats.credentials import Role
from dsec.bus.projects import RIGHTS, ROOT, Principal, Project, Quota
from dsec.plugins.iam.entries import REMEMBERED, Identity, Member, answer_entry, answer_in

ResultT = TypeVar("ResultT")
_TENANT = Role.TENANT.value
_SCHEMA = """
CREATE TABLE member (
  owner TEXT PRIMARY KEY, public TEXT NOT NULL, former TEXT NOT NULL, role TEXT NOT NULL,
  project TEXT NOT NULL, by TEXT NOT NULL, entry BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX member_public ON member (public);
CREATE INDEX member_former ON member (former);
CREATE INDEX member_project ON member (project, owner);
CREATE INDEX member_by ON member (by);
CREATE TABLE project (project TEXT PRIMARY KEY, parent TEXT NOT NULL, quota TEXT NOT NULL) STRICT;
CREATE INDEX project_parent ON project (parent);
CREATE TABLE answer (
  project TEXT NOT NULL, op TEXT NOT NULL, digest TEXT NOT NULL, answer BLOB NOT NULL, at REAL NOT NULL,
  PRIMARY KEY (project, op)
) STRICT;
CREATE INDEX answer_at ON answer (at);
CREATE TABLE moved (issuer TEXT PRIMARY KEY) STRICT;
"""
_MADE = """
WITH RECURSIVE made(owner) AS (
  SELECT owner FROM member WHERE by = ?
  UNION SELECT member.owner FROM member JOIN made ON member.by = made.owner
) SELECT owner FROM made WHERE owner != ?
"""
_MAKERS = """
WITH RECURSIVE makers(owner) AS (
  SELECT by FROM member WHERE owner = ?
  UNION SELECT member.by FROM member JOIN makers ON member.owner = makers.owner
) SELECT owner FROM makers
"""
_BELOW = """
WITH RECURSIVE below(project) AS (
  SELECT ? UNION SELECT project.project FROM project JOIN below ON project.parent = below.project
) SELECT project FROM below
"""


class Tables:
    """Queries and changes; each is one statement or few. For one thread."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        self._database.executescript(_SCHEMA)
        self._written: dict[str, bytes] = {}

    def close(self) -> None:
        self._database.close()

    # --- the replica

    def apply(self, entries: Iterable[tuple[str, bytes]]) -> None:
        """Take in what the bucket has: keys and values, an empty one for what was deleted."""
        with self._transaction():
            for key, value in entries:
                self._apply(key, value)
            self._run("DELETE FROM answer WHERE at < ?", time.time() - REMEMBERED)

    def attempt(self, work: Callable[[Tables], ResultT]) -> tuple[ResultT, Mapping[str, bytes]]:
        """What `work` returns, and the entries that it would write; nothing is changed here.

        Raises what `work` raises.
        """
        self._written = {}
        self._database.execute("BEGIN")
        try:
            return work(self), self._written
        finally:
            self._database.execute("ROLLBACK")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def _put(self, key: str, value: bytes) -> None:
        self._written[key] = value
        self._apply(key, value)

    def _apply(self, key: str, value: bytes) -> None:
        kind, _, name = key.partition(".")
        match kind:
            case "member":
                self._apply_member(name, value)
            case "project":
                self._apply_project(name, value)
            case "answer" if value:
                self._run("INSERT OR REPLACE INTO answer VALUES (?, ?, ?, ?, ?)", *_answer_row(name, value))
            case "moved":
                self._run("INSERT OR REPLACE INTO moved VALUES (?)", name)

    def _apply_member(self, owner: str, value: bytes) -> None:
        if not value:
            self._run("DELETE FROM member WHERE owner = ?", owner)
            return
        one = Member.decoded(value)
        row = (owner, one.public, one.former, one.role, one.project, one.by, value)
        self._run("INSERT OR REPLACE INTO member VALUES (?, ?, ?, ?, ?, ?, ?)", *row)

    def _apply_project(self, project: str, value: bytes) -> None:
        if not value:
            self._run("DELETE FROM project WHERE project = ?", project)
            return
        fields = Project.model_validate_json(value)
        row = (project, fields.parent, fields.quota.model_dump_json())
        self._run("INSERT OR REPLACE INTO project VALUES (?, ?, ?)", *row)

    # --- keys

    def find(self, public: str) -> Identity | None:
        """Who has this public nkey, or had it and may still use it."""
        row = self._one("SELECT entry FROM member WHERE public = ?", public) if public else None
        if row is not None:
            return Member.decoded(row[0]).identity()
        row = self._one("SELECT entry FROM member WHERE former = ?", public) if public else None
        member = None if row is None else Member.decoded(row[0])
        if member is None or member.former_until <= time.time():
            return None
        return member.identity(until=member.former_until)

    def member(self, owner: str) -> Member | None:
        row = self._one("SELECT entry FROM member WHERE owner = ?", owner)
        return None if row is None else Member.decoded(row[0])

    def put_member(self, member: Member) -> None:
        """Enrol a name or change it. Raises Conflict when somebody else has its key."""
        taken = self._one(
            "SELECT 1 FROM member WHERE (public = ?1 OR former = ?1) AND owner != ?2",
            member.public,
            member.owner,
        )
        if taken:
            raise Conflict("this public is taken: choose another", field="public")
        self._put(member.key, member.encoded())

    def add_member(self, member: Member) -> None:
        """Enrol a new name. Raises Conflict."""
        if self.owner_exists(member.owner):
            raise Conflict(f"{member.owner} exists already: names are unique in an installation")
        self.put_member(member)

    def remove(self, owners: Iterable[str]) -> None:
        for owner in owners:
            if self.owner_exists(owner):
                self._put(f"member.{owner}", b"")

    # --- projects

    def exists(self, project: str) -> bool:
        """A project exists by an entry of its own, or by having a principal."""
        return project == ROOT or bool(
            self.has_project(project) or self._one("SELECT 1 FROM member WHERE project = ?", project)
        )

    def has_project(self, project: str) -> bool:
        """Whether it has an entry of its own."""
        return self._one("SELECT 1 FROM project WHERE project = ?", project) is not None

    def project(self, project: str) -> Project:
        row = self._one("SELECT parent, quota FROM project WHERE project = ?", project)
        if row is None:
            return Project(project=project, parent="" if project == ROOT else ROOT)
        return Project(project=project, parent=row[0], quota=Quota.model_validate_json(row[1]))

    def line(self, project: str) -> list[Project]:
        """The project and all above it, up to the root."""
        line = [self.project(project)]
        while line[-1].parent:
            line.append(self.project(line[-1].parent))
        return line

    def subtree(self, project: str) -> set[str]:
        """The project and all below it; those that the operator made without a parent lie below the root."""
        names = {row[0] for row in self._all(_BELOW, project)}
        if project == ROOT:
            names |= {row[0] for row in self._all("SELECT project FROM member WHERE role = ?", _TENANT)}
        return names

    def count_children(self, project: str) -> int:
        return int(self._one("SELECT count(*) FROM project WHERE parent = ?", project)[0])

    def put_project(self, project: Project) -> None:
        self._put(f"project.{project.project}", project.model_dump_json().encode())

    # --- principals

    def owner_exists(self, owner: str) -> bool:
        return self._one("SELECT 1 FROM member WHERE owner = ?", owner) is not None

    def project_of(self, principal: str) -> str | None:
        """The project of a tenant, None if there is no such tenant."""
        row = self._one("SELECT project FROM member WHERE owner = ? AND role = ?", principal, _TENANT)
        return None if row is None else str(row[0])

    def rights(self, principal: str) -> tuple[str, ...]:
        member = self.member(principal)
        return RIGHTS if member is None or member.rights is None else member.rights

    def makers(self, principal: str) -> set[str]:
        """Who made it, who made that one, and so on."""
        return {row[0] for row in self._all(_MAKERS, principal)}

    def made(self, principal: str) -> list[str]:
        """Those it made, those they made, and so on: no one stands before its maker."""
        return [row[0] for row in self._all(_MADE, principal, principal)]

    def made_directly(self, principal: str) -> list[Member]:
        return [
            Member.decoded(row[0]) for row in self._all("SELECT entry FROM member WHERE by = ?", principal)
        ]

    def count_principals(self, project: str) -> int:
        return int(self._one("SELECT count(*) FROM member WHERE project = ?", project)[0])

    def principals(self, projects: Iterable[str], after: str, limit: int) -> list[Principal]:
        """Principals of `projects` whose names follow `after`."""
        rows = self._all(
            "SELECT entry FROM member WHERE role = ? AND owner > ?"
            " AND project IN (SELECT value FROM json_each(?)) ORDER BY owner LIMIT ?",
            _TENANT,
            after,
            orjson.dumps(list(projects)).decode(),
            limit,
        )
        return [_principal(Member.decoded(row[0])) for row in rows]

    # --- answers

    def answer(self, project: str, op: str, *, since: float) -> tuple[str, bytes] | None:
        """Digest and answer of an operation that was done after `since`."""
        row = self._one(
            "SELECT digest, answer FROM answer WHERE project = ? AND op = ? AND at > ?", project, op, since
        )
        return None if row is None else (str(row[0]), bytes(row[1]))

    def remember(self, project: str, op: str, digest: str, answer: bytes) -> None:
        self._put(f"answer.{project}.{op}", answer_entry(digest, answer, time.time()))

    # --- stores of older versions

    def moved(self, issuer: str) -> bool:
        """Whether the store of that home was taken over."""
        return self._one("SELECT 1 FROM moved WHERE issuer = ?", issuer) is not None

    def put_moved(self, issuer: str) -> None:
        self._put(f"moved.{issuer}", b"{}")

    def _run(self, statement: str, *values: Any) -> None:
        self._database.execute(statement, values)

    def _one(self, statement: str, *values: Any) -> Any:
        return self._database.execute(statement, values).fetchone()

    def _all(self, statement: str, *values: Any) -> list[Any]:
        return self._database.execute(statement, values).fetchall()


def _principal(member: Member) -> Principal:
    rights = RIGHTS if member.rights is None else member.rights
    return Principal(principal=member.owner, project=member.project, rights=rights, by=member.by)


def _answer_row(name: str, value: bytes) -> tuple[str, str, str, bytes, float]:
    project, _, op = name.partition(".")
    return project, op, *answer_in(value)
