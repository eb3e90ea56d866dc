"""Projects, quotas and principals, for whoever has the right `iam`: people and agents alike.

    async with dsec.Client() as client:
        await client.projects.create("p-run", quota={"sandboxes": 100, "cpu": 32})
        agent = await client.principals.create("u-agent", project="p-run")
        agent.save(Path("agent.json"))                  # DSEC_CREDENTIALS=agent.json is all it needs

Authority is the projects below one's own, and in one's own project the principals that one made. A secret is
made here and never travels: iam gets the public key alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from typing import Any, Final, TypedDict

from pydantic import BaseModel, ValidationError

from dsec.bus.errors import SpecError
from dsec.bus.ids import check
from dsec.bus.nats.credentials import Credentials, Role, new_seed
from dsec.bus.projects import (
    CreatePrincipal,
    CreateProject,
    Principal,
    Project,
    RevokePrincipal,
    Rotated,
    RotatePrincipal,
    SetQuota,
)
from dsec.sdk.link import Link, new_operation

PAGE: Final = 1000


class QuotaArgs(TypedDict, total=False):
    """Bounds of a project and all below it; what is left out is bounded from above alone."""

    sandboxes: int
    cpu: float
    memory: int
    creates_per_second: float


class Projects:
    """`client.projects`. Methods raise PolicyError (no right `iam`) besides what they name."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def create(
        self,
        name: str,
        *,
        parent: str | None = None,
        quota: QuotaArgs | Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Project:
        """A project `p-…` below one's own, or below `parent`.

        Raises SpecError naming the field, Conflict (the name is taken), GoneError (no such parent below one's
        own), QuotaExceeded (more than a project above has), LimitError.
        """
        body = {"project": name, "parent": parent, "quota": dict(quota or {})}
        return Project.model_validate(await _ask(self._link, "project", CreateProject, body, key))

    async def set_quota(self, name: str, quota: QuotaArgs | Mapping[str, Any]) -> Project:
        """Replace the quota of a project below one's own; it holds two seconds later.

        What lives stays, if it is more than that. Raises SpecError, GoneError, QuotaExceeded.
        """
        body = {"project": name, "quota": dict(quota)}
        return Project.model_validate(await _ask(self._link, "quota", SetQuota, body))

    async def list(self) -> AsyncIterator[Project]:
        """One's own project and those below it, by name."""
        async for one in _pages(self._link, "projects", "project", {}):
            yield Project.model_validate(one)


class Principals:
    """`client.principals`. Methods raise PolicyError (no right `iam`) besides what they name."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def create(
        self,
        name: str,
        *,
        project: str | None = None,
        rights: Collection[str] | None = None,
        key: str | None = None,
    ) -> Credentials:
        """Credentials of a new principal `u-…` of one's own project, or of one below.

        `rights`: nouns that it may ask under, at most one's own; by default all of them but `iam`. Raises
        SpecError naming the field, Conflict (the name is taken), GoneError, PolicyError, LimitError.
        """
        where = check("project", project or self._link.project)
        made = Credentials.new(Role.TENANT, project=where, principal=check("principal", name))
        body = {
            "principal": name,
            "public": made.public,
            "project": where,
            "rights": None if rights is None else tuple(rights),
        }
        await _ask(self._link, "principal", CreatePrincipal, body, key)
        return made

    async def revoke(self, name: str, *, keep_made: bool = False) -> tuple[str, ...]:
        """Refuse a principal from now on, and close its connections; the names that were revoked.

        Whom it made goes with it, or becomes one's own with `keep_made`. Raises GoneError.
        """
        body = {"principal": name, "keep_made": keep_made}
        answer = await _ask(self._link, "revoke", RevokePrincipal, body)
        return tuple(answer["principals"])

    async def rotate(self, name: str, *, seed: str | None = None, key: str | None = None) -> Credentials:
        """Credentials with another key, for oneself or for whom one may revoke.

        The former key is refused from now on, and its connections are closed, one's own among them: they come
        back with the new key when it was saved to the file that their credentials were loaded from. `seed`:
        the new one, if the caller has kept it already. Raises GoneError, Conflict.
        """
        fresh = Credentials(Role.TENANT, seed or new_seed(), principal=check("principal", name))
        body = {"principal": name, "public": fresh.public}
        answer = Rotated.model_validate(await _ask(self._link, "rotate", RotatePrincipal, body, key))
        return replace(fresh, project=answer.project)

    async def list(self, *, project: str | None = None) -> AsyncIterator[Principal]:
        """Principals of one's own project and those below, or of one of them, by name. Raises GoneError."""
        async for one in _pages(self._link, "principals", "principal", {"project": project}):
            yield Principal.model_validate(one)


async def _ask(
    link: Link, verb: str, model: type[BaseModel], body: dict[str, Any], key: str | None = None
) -> Any:
    op = check("operation", key) if key is not None else new_operation()
    _check(model, body | {"op": op, "deadline": 0})
    return await link.call(link.subject("iam", verb), body, op=op)


def _check(model: type[BaseModel], body: dict[str, Any]) -> None:
    """Raises SpecError naming the field. Before anything is sent: JSON makes null, no bound, of a NaN."""
    try:
        model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise SpecError(f"{field}: {first['msg']}", field=field) from None


async def _pages(link: Link, verb: str, name: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    after, more = "", True
    while more:
        page = await link.call(link.subject("iam", verb), body | {"after": after, "limit": PAGE})
        found = page[verb]
        for one in found:
            yield one
        more = page["more"] and bool(found)
        after = found[-1][name] if found else ""
