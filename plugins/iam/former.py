"""Takes over the store of a home of an older version, `identities.sqlite3`, into the bucket; once.

What the bucket has already stays. The file is renamed and kept: it holds no secret.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path
from typing import Final

from dsec.bus.errors import InfraError
from dsec.bus.projects import Project, Quota
from dsec.plugins.iam.entries import Member
from dsec.plugins.iam.store import MOST_CHANGES, Store
from dsec.plugins.iam.tables import Tables

log = logging.getLogger(__name__)

NAME: Final = "identities.sqlite3"
Entry = Member | Project


async def take_over(home: Path, issuer: str, store: Store) -> None:
    """`issuer` names the home. Repeatable at any point. Raises InfraError when the file cannot be read."""
    file = home / NAME
    if not file.exists():
        return
    if not (await store.fresh()).moved(issuer):
        entries = _entries(file)
        for at in range(0, len(entries), MOST_CHANGES):
            part = entries[at : at + MOST_CHANGES]
            await store.change(lambda tables, part=part: _put(tables, part))  # type: ignore[misc] # bound now
        await store.change(lambda tables: tables.put_moved(issuer))
        log.info("%d identities and projects of %s are in the bucket now", len(entries), file)
    file.rename(file.with_name(f"{NAME}.moved"))


def _put(tables: Tables, entries: list[Entry]) -> None:
    for entry in entries:
        if isinstance(entry, Project):
            if not tables.has_project(entry.project):
                tables.put_project(entry)
        elif not tables.owner_exists(entry.owner) and tables.find(entry.public) is None:
            tables.put_member(entry)


def _entries(file: Path) -> list[Entry]:
    """Of both earlier forms: the first had neither makers nor projects."""
    try:
        with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_schema")}
            makers = dict(_makers(database)) if "principal" in tables else {}
            entries: list[Entry] = [_member(row, makers) for row in database.execute(_IDENTITIES)]
            if "project" in tables:
                entries += [_project(row) for row in database.execute(_PROJECTS)]
            return entries
    except (sqlite3.Error, ValueError) as error:
        raise InfraError.during(f"the identities in {file}", error) from error


_IDENTITIES: Final = (
    "SELECT owner, public, role, project, principal, node, created FROM identity WHERE role != 'iam'"
)
_PROJECTS: Final = "SELECT project, parent, quota FROM project"


def _makers(database: sqlite3.Connection) -> list[tuple[str, tuple[tuple[str, ...], str]]]:
    rows = database.execute("SELECT owner, rights, made_by FROM principal")
    return [(row[0], (tuple(row[1].split()), row[2])) for row in rows]


def _member(row: tuple[str, ...], makers: dict[str, tuple[tuple[str, ...], str]]) -> Member:
    owner, public, role, project, principal, node, created = row
    rights, by = makers.get(owner, (None, ""))
    return Member(owner, public, role, project, principal, node, rights, by, float(created))


def _project(row: tuple[str, str, str]) -> Project:
    return Project(project=row[0], parent=row[1], quota=Quota.model_validate_json(row[2]))
