"""The statements on iam's tables, inside a transaction that somebody else holds."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from dsec.bus.nats.credentials import Role
from dsec.bus.projects import RIGHTS, ROOT, Principal, Project, Quota
from dsec.plugins.iam.store import rights_in

_TENANT = Role.TENANT.value
_MADE = """
WITH RECURSIVE made(owner) AS (
  SELECT owner FROM principal WHERE made_by = ?
  UNION SELECT principal.owner FROM principal JOIN made ON principal.made_by = made.owner
) SELECT owner FROM made WHERE owner != ? ORDER BY owner
"""
_MAKERS = """
WITH RECURSIVE makers(owner) AS (
  SELECT made_by FROM principal WHERE owner = ?
  UNION SELECT principal.made_by FROM principal JOIN makers ON principal.owner = makers.owner
) SELECT owner FROM makers
"""
_BELOW = """
WITH RECURSIVE below(project) AS (
  SELECT ? UNION SELECT project.project FROM project JOIN below ON project.parent = below.project
) SELECT project FROM below
"""


class Tables:
    """Queries and changes; each is one statement or few."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    # --- projects

    def exists(self, project: str) -> bool:
        """A project exists by a row of its own, or by having a principal."""
        return project == ROOT or bool(
            self._one("SELECT 1 FROM project WHERE project = ?", project)
            or self._one("SELECT 1 FROM identity WHERE project = ?", project)
        )

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
            names |= {row[0] for row in self._all("SELECT project FROM identity WHERE role = ?", _TENANT)}
        return names

    def count_children(self, project: str) -> int:
        return int(self._one("SELECT count(*) FROM project WHERE parent = ?", project)[0])

    def put_project(self, project: Project) -> None:
        row = (project.project, project.parent, project.quota.model_dump_json(), time.time())
        self._database.execute("INSERT OR REPLACE INTO project VALUES (?, ?, ?, ?)", row)

    # --- principals

    def owner_exists(self, owner: str) -> bool:
        return self._one("SELECT 1 FROM identity WHERE owner = ?", owner) is not None

    def project_of(self, principal: str) -> str | None:
        """The project of a tenant, None if there is no such tenant."""
        row = self._one("SELECT project FROM identity WHERE owner = ? AND role = ?", principal, _TENANT)
        return None if row is None else str(row[0])

    def rights(self, principal: str) -> tuple[str, ...]:
        row = self._one("SELECT rights FROM principal WHERE owner = ?", principal)
        return RIGHTS if row is None else rights_in(row[0]) or ()

    def makers(self, principal: str) -> set[str]:
        """Who made it, who made that one, and so on."""
        return {row[0] for row in self._all(_MAKERS, principal)}

    def made(self, principal: str) -> list[str]:
        """Those it made, those they made, and so on, by name."""
        return [row[0] for row in self._all(_MADE, principal, principal)]

    def count_principals(self, project: str) -> int:
        return int(self._one("SELECT count(*) FROM identity WHERE project = ?", project)[0])

    def principals(self, projects: Iterable[str], after: str, limit: int) -> list[Principal]:
        """Principals of `projects` whose names follow `after`."""
        rows = self._all(
            "SELECT owner, project, rights, made_by FROM identity LEFT JOIN principal USING (owner)"
            " WHERE role = ? AND owner > ? AND project IN (SELECT value FROM json_each(?))"
            " ORDER BY owner LIMIT ?",
            _TENANT,
            after,
            orjson.dumps(list(projects)).decode(),
            limit,
        )
        return [
            Principal(
                principal=row[0],
                project=row[1],
                rights=RIGHTS if row[2] is None else rights_in(row[2]) or (),
                by=row[3] or "",
            )
            for row in rows
        ]

    def add_principal(self, who: Principal, public: str) -> None:
        """Raises sqlite3.IntegrityError when the name or the key is taken."""
        self._database.execute(
            "INSERT INTO identity VALUES (?, ?, ?, ?, ?, '', ?)",
            (public, who.principal, _TENANT, who.project, who.principal, time.time()),
        )
        self._database.execute(
            "INSERT OR REPLACE INTO principal VALUES (?, ?, ?)", (who.principal, " ".join(who.rights), who.by)
        )

    def hand_over(self, maker: str, to: str) -> None:
        """What `maker` made is `to`'s from now on."""
        self._database.execute("UPDATE principal SET made_by = ? WHERE made_by = ?", (to, maker))

    def remove(self, owners: Sequence[str]) -> None:
        for table in ("identity", "principal"):
            rows = [(owner,) for owner in owners]
            self._database.executemany(f"DELETE FROM {table} WHERE owner = ?", rows)  # noqa: S608 - our names

    # --- answers

    def answer(self, project: str, op: str, *, since: float) -> tuple[str, bytes] | None:
        """Digest and answer of an operation that was done after `since`."""
        row = self._one(
            "SELECT digest, answer FROM answered WHERE project = ? AND op = ? AND at > ?", project, op, since
        )
        return None if row is None else (str(row[0]), bytes(row[1]))

    def remember(self, project: str, op: str, digest: str, answer: bytes) -> None:
        row = (project, op, digest, answer, time.time())
        self._database.execute("INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?, ?)", row)

    def _one(self, statement: str, *values: Any) -> Any:
        return self._database.execute(statement, values).fetchone()

    def _all(self, statement: str, *values: Any) -> list[Any]:
        return self._database.execute(statement, values).fetchall()
