"""Projects and principals as their makers manage them: who may do what to whom. No I/O.

Each method is the work of one transaction (`Store.change`, `Tables.attempt`), or reads what is fresh.

The rules of delegation:
- nobody reaches above or beside: a caller's authority is the projects below its own, and in its own the
  principals that it made, directly or through those it made; anything else looks as if it did not exist
- nobody hands on what it does not have: rights are at most the caller's, a quota at most the least above it
- a revoked caller has no authority from that moment on, whatever connections it still has
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import orjson
from pydantic import BaseModel

from dsec.bus.errors import Conflict, GoneError, LimitError, PolicyError, QuotaExceeded, SpecError
from dsec.bus.handlers import ok
from dsec.bus.messages import Request
from dsec.bus.nats.credentials import Role
from dsec.bus.projects import (
    QUANTITIES,
    RIGHTS,
    Bounds,
    CreatePrincipal,
    CreateProject,
    ListPrincipals,
    ListProjects,
    Principal,
    Principals,
    Project,
    Projects,
    Quota,
    Revoked,
    RevokePrincipal,
    Rotated,
    RotatePrincipal,
    SetQuota,
    Subtree,
)
from dsec.plugins.iam.entries import REMEMBERED, Member
from dsec.plugins.iam.tables import Tables

MOST_DEPTH: Final = 16
MOST_CHILDREN: Final = 10_000
"""Projects directly below one, and principals in one."""
MOST_CHANGES: Final = 900
"""Principals that one transaction may change; the bucket takes 1,000 entries."""


@dataclass(frozen=True, slots=True)
class Who:
    """The caller, as the broker pins it in the subject."""

    project: str
    principal: str


class Directory:
    """Over tables that the caller has made fresh."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def create_project(self, who: Who, asked: CreateProject) -> bytes:
        """The answer with the Project. Raises GoneError, Conflict, QuotaExceeded, LimitError, PolicyError."""

        def work(tables: Tables) -> Project:
            parent = asked.parent or who.project
            if parent != who.project:
                _below(tables, who.project, parent, "parent")
            if tables.exists(asked.project):
                raise Conflict(f"{asked.project} exists already", field="project")
            line = tables.line(parent)
            if len(line) >= MOST_DEPTH:
                raise LimitError(f"projects nest {MOST_DEPTH} deep", field="parent")
            if tables.count_children(parent) >= MOST_CHILDREN:
                raise LimitError(f"{parent} has {MOST_CHILDREN} projects below it", field="parent")
            _bounded(asked.quota, line)
            made = Project(project=asked.project, parent=parent, quota=asked.quota)
            tables.put_project(made)
            return made

        return self._once(who, asked, work)

    def set_quota(self, who: Who, asked: SetQuota) -> bytes:
        """The answer with the Project. Raises GoneError, QuotaExceeded, PolicyError."""

        def work(tables: Tables) -> Project:
            line = _below(tables, who.project, asked.project, "project")
            _bounded(asked.quota, line[1:])
            changed = line[0].model_copy(update={"quota": asked.quota})
            tables.put_project(changed)
            return changed

        return self._once(who, asked, work)

    def create_principal(self, who: Who, asked: CreatePrincipal) -> bytes:
        """The answer with the Principal. Raises GoneError, Conflict, LimitError, PolicyError, SpecError."""

        def work(tables: Tables) -> Principal:
            project = asked.project or who.project
            if project != who.project:
                _below(tables, who.project, project, "project")
            made = Principal(
                principal=asked.principal,
                project=project,
                rights=_handed_on(asked.rights, tables.rights(who.principal)),
                by=who.principal,
            )
            if tables.count_principals(project) >= MOST_CHILDREN:
                raise LimitError(f"{project} has {MOST_CHILDREN} principals", field="project")
            if tables.owner_exists(asked.principal):
                raise Conflict("this principal is taken: choose another", field="principal")
            tables.put_member(_member(made, asked.public))
            return made

        return self._once(who, asked, work)

    def revoke(self, who: Who, asked: RevokePrincipal) -> bytes:
        """The answer with the names that were Revoked, after `prune`. Raises GoneError, PolicyError."""

        def work(tables: Tables) -> Revoked:
            _managed(tables, who, asked.principal)
            made = [] if asked.keep_made else tables.made(asked.principal)
            if asked.keep_made:
                self._hand_over(asked.principal, who.principal)
            names = [asked.principal, *made]
            tables.remove(names)
            return Revoked(principals=names)

        return self._once(who, asked, work)

    def prune(self, who: Who, asked: RevokePrincipal) -> list[str]:
        """What must go before `revoke` fits into one transaction; as often as it returns names.

        Those furthest from the revoked principal go first: whatever comes in between, it can be repeated.
        """
        tables = self._tables
        _authorized(tables, who)
        if tables.answer(who.project, asked.op, since=time.time() - REMEMBERED):
            return []
        _managed(tables, who, asked.principal)
        if asked.keep_made:
            many = len(tables.made_directly(asked.principal)) > MOST_CHANGES
            return self._hand_over(asked.principal, who.principal) if many else []
        made = tables.made(asked.principal)
        last = made[-MOST_CHANGES:] if len(made) > MOST_CHANGES else []
        tables.remove(last)
        return last

    def rotate(self, who: Who, asked: RotatePrincipal) -> bytes:
        """The answer with the Rotated: one's own key, or that of whom one may revoke.

        Raises GoneError, Conflict (somebody has the key), PolicyError.
        """

        def work(tables: Tables) -> Rotated:
            if asked.principal != who.principal:
                _managed(tables, who, asked.principal)
            member = tables.member(asked.principal)
            assert member is not None, "it is managed, or the caller"
            tables.put_member(rotated(member, asked.public, grace=0.0))
            return Rotated(principal=member.owner, project=member.project, public=asked.public)

        return self._once(who, asked, work)

    def _hand_over(self, maker: str, to: str) -> list[str]:
        """Some of what `maker` made is `to`'s from now on."""
        given = self._tables.made_directly(maker)[:MOST_CHANGES]
        for member in given:
            self._tables.put_member(replace(member, by=to))
        return [member.owner for member in given]

    def projects(self, who: Who, asked: ListProjects) -> Projects:
        """The caller's project and those below it, by name."""
        tables = self._tables
        _authorized(tables, who)
        names = sorted(name for name in tables.subtree(who.project) if name > asked.after)
        chosen = [tables.project(name) for name in names[: asked.limit]]
        return Projects(projects=chosen, more=len(names) > asked.limit)

    def principals(self, who: Who, asked: ListPrincipals) -> Principals:
        """Principals of the caller's project and those below it, or of one of them. Raises GoneError."""
        tables = self._tables
        _authorized(tables, who)
        if asked.project in {None, who.project}:
            projects = {who.project} if asked.project else tables.subtree(who.project)
        else:
            projects = {_below(tables, who.project, str(asked.project), "project")[0].project}
        found = tables.principals(projects, asked.after, asked.limit + 1)
        return Principals(principals=found[: asked.limit], more=len(found) > asked.limit)

    def bounds(self, project: str) -> Bounds:
        """What bounds a project: those of its line that have a quota."""
        return Bounds(bounds=[one for one in self._tables.line(project) if one.quota != Quota()])

    def subtree(self, project: str) -> Subtree:
        """A project and all below it."""
        return Subtree(projects=sorted(self._tables.subtree(project)))

    def _once(self, who: Who, asked: Request, work: Callable[[Tables], BaseModel]) -> bytes:
        """The first answer to the operation; the change and the answer are stored together, or neither."""
        digest, tables = _digest(who, asked), self._tables
        _authorized(tables, who)
        known = tables.answer(who.project, asked.op, since=time.time() - REMEMBERED)
        if known is not None and known[0] != digest:
            raise Conflict(f"key {asked.op!r} was used with another request; choose a new one", field="op")
        if known is not None:
            return known[1]
        answer = ok(work(tables))
        tables.remember(who.project, asked.op, digest, answer)
        return answer


def rotated(member: Member, public: str, *, grace: float) -> Member:
    """`member` with another key; the former one is accepted for `grace` seconds more."""
    until = time.time() + grace if grace > 0 else 0.0
    return replace(member, public=public, former=member.public if until else "", former_until=until)


def _member(made: Principal, public: str) -> Member:
    return Member(
        owner=made.principal,
        public=public,
        role=Role.TENANT.value,
        project=made.project,
        principal=made.principal,
        rights=made.rights,
        by=made.by,
        created=time.time(),
    )


def _authorized(tables: Tables, who: Who) -> None:
    rights = tables.rights(who.principal)
    if tables.project_of(who.principal) != who.project or "iam" not in rights:
        raise PolicyError(f"{who.principal} has no right `iam` (any more)")


def _below(tables: Tables, own: str, project: str, field: str) -> list[Project]:
    """The line of `project` up to the root. Raises GoneError unless it lies below `own`."""
    line = tables.line(project) if tables.exists(project) else []
    if own not in {one.project for one in line[1:]}:
        raise GoneError(f"no project {project} below {own}", field=field)
    return line


def _managed(tables: Tables, who: Who, principal: str) -> None:
    """Raises GoneError unless the caller has authority over `principal`."""
    project = tables.project_of(principal)
    if project == who.project and who.principal in tables.makers(principal):
        return
    if project in {None, who.project} or who.project not in {
        one.project for one in tables.line(project or "")
    }:
        raise GoneError(f"no principal {principal} below {who.project}", field="principal")


def _bounded(quota: Quota, line: list[Project]) -> None:
    """Raises QuotaExceeded naming the first quantity that somebody above has less of."""
    for quantity in QUANTITIES:
        asked = getattr(quota, quantity)
        for above in line:
            bound = getattr(above.quota, quantity)
            if asked is not None and bound is not None and asked > bound:
                raise QuotaExceeded(
                    f"{quantity}: {asked:g} is more than the {bound:g} of {above.project}",
                    field=f"quota.{quantity}",
                )


def _handed_on(asked: tuple[str, ...] | None, own: tuple[str, ...]) -> tuple[str, ...]:
    """The rights of a new principal. Raises SpecError for unknown ones, PolicyError for foreign ones."""
    if asked is None:
        asked = tuple(right for right in own if right != "iam")
    if not asked:
        raise SpecError("a principal needs at least one right", field="rights")
    unknown = sorted(set(asked) - set(RIGHTS))
    if unknown:
        raise SpecError(f"{unknown[0]!r} is not among the rights {', '.join(RIGHTS)}", field="rights")
    foreign = sorted(set(asked) - set(own))
    if foreign:
        raise PolicyError(f"you cannot hand on {foreign[0]!r}: you do not have it", field="rights")
    return tuple(sorted(set(asked)))


def _digest(who: Who, asked: Request) -> str:
    body = [who.principal, type(asked).__name__, asked.model_dump(mode="json", exclude={"deadline", "v"})]
    return hashlib.blake2s(orjson.dumps(body, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
