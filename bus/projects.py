"""Projects, principals and quotas: what is asked of iam on `iam.<verb>.<p>.<u>`, and what it answers.

Projects nest; their ids stay one token and say nothing of it. A quota bounds a project together with all
projects below it. A principal with the right `iam` manages the projects below its own, and in its own the
principals that it made.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import ConfigDict, Field, StringConstraints

from dsec.bus.ids import PATTERNS
from dsec.bus.messages import Message, Request
from dsec.bus.spec import Strict
from dsec.bus.subjects import TENANT_VERBS

ROOT: Final = "p-default"
"""The operator's project: the root of all others, without limits."""
RIGHTS: Final = tuple(sorted({noun for noun, _ in TENANT_VERBS}))
"""A right is a noun of the request subjects: its holder may ask everything under that noun."""

ProjectId = Annotated[str, StringConstraints(pattern=f"^{PATTERNS['project'].pattern}$")]
PrincipalId = Annotated[str, StringConstraints(pattern=f"^{PATTERNS['principal'].pattern}$")]
PublicKey = Annotated[str, StringConstraints(pattern=r"^U[A-Z2-7]{55}$")]
"""A user's public nkey. The seed stays with the client that made it."""


class Quota(Strict):
    """Bounds of a project with all below it; None: no bound of its own, those above hold all the same."""

    sandboxes: int | None = Field(None, ge=0, le=1 << 40, description="live ones")
    cpu: float | None = Field(None, ge=0, le=1e9, description="cores promised to live sandboxes")
    memory: int | None = Field(None, ge=0, le=1 << 60, description="bytes promised to live sandboxes")
    creates_per_second: float | None = Field(None, ge=0.001, le=1e6, description="one second may be saved up")


QUANTITIES: Final = tuple(Quota.model_fields)


class Project(Message):
    """A project; `parent` is empty for the root alone."""

    project: str
    parent: str
    quota: Quota = Quota()


class Principal(Message):
    """Who may connect. `by`: who made it, empty for the operator's."""

    principal: str
    project: str
    rights: tuple[str, ...]
    by: str = ""


class _Asked(Request):
    """What iam is asked refuses unknown fields: a misspelt quota must not pass for none."""

    model_config = ConfigDict(extra="forbid")


class CreateProject(_Asked):
    """iam.project: a project below the caller's own, or below `parent`. Answered by Project."""

    project: ProjectId
    parent: ProjectId | None = None
    quota: Quota = Quota()


class SetQuota(_Asked):
    """iam.quota: the quota of a project below the caller's own, replaced whole. Answered by Project."""

    project: ProjectId
    quota: Quota


class CreatePrincipal(_Asked):
    """iam.principal: in the caller's own project or one below. Answered by Principal.

    `rights`: at most the caller's; None: the caller's without `iam`.
    """

    principal: PrincipalId
    public: PublicKey
    project: ProjectId | None = None
    rights: tuple[str, ...] | None = None


class RevokePrincipal(_Asked):
    """iam.revoke: refused at its next connect, and its connections end. Answered by Revoked.

    Those it made, and those they made, go with it; with `keep_made` they become the caller's.
    """

    principal: PrincipalId
    keep_made: bool = False


class RotatePrincipal(_Asked):
    """iam.rotate: another key for oneself or for whom one may revoke; the former one is refused from then on,
    and its connections end. Answered by Rotated."""

    principal: PrincipalId
    public: PublicKey


class ListProjects(_Asked):
    """iam.projects: the caller's project and those below it, by name. Answered by Projects."""

    after: str = ""
    limit: int = Field(1000, ge=1, le=1000)


class ListPrincipals(ListProjects):
    """iam.principals: those of the caller's project and of those below, by name. Answered by Principals."""

    project: ProjectId | None = None


class Projects(Message):
    projects: list[Project]
    more: bool


class Principals(Message):
    principals: list[Principal]
    more: bool


class Revoked(Message):
    """Names that were revoked, the one that was asked for first."""

    principals: list[str]


class Rotated(Message):
    principal: str
    project: str
    public: str


class AskBounds(Message):
    """quota.bounds, core to iam: what bounds a project. Answered by Bounds."""

    project: str


class Bounds(Message):
    """The project's own bounds and those above it that have any, nearest first."""

    bounds: list[Project]


class AskSubtree(Message):
    """quota.subtree, core to iam: a project and all below it. Answered by Subtree."""

    project: str


class Subtree(Message):
    projects: list[str]
