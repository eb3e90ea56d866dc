"""Generated from sdk/projects.py by `make twin`: change that file, not this one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dsec.bus.nats.credentials import Credentials
from dsec.bus.projects import Principal, Project
from dsec.sdk.projects import Principals as AsyncPrincipals
from dsec.sdk.projects import Projects as AsyncProjects
from dsec.sdk.projects import QuotaArgs
from dsec.sdk.twin import base as twin


class Projects(twin.Twin[AsyncProjects]):
    """`client.projects`. Methods raise PolicyError (no right `iam`) besides what they name."""

    def create(
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
        return self._portal.call(self._origin.create(name, parent=parent, quota=quota, key=key))

    def set_quota(self, name: str, quota: QuotaArgs | Mapping[str, Any]) -> Project:
        """Replace the quota of a project below one's own; it holds two seconds later.

        What lives stays, if it is more than that. Raises SpecError, GoneError, QuotaExceeded.
        """
        return self._portal.call(self._origin.set_quota(name, quota))

    def list(self) -> Iterator[Project]:
        """One's own project and those below it, by name."""
        return twin.each(self._portal, self._origin.list(), twin.same)


class Principals(twin.Twin[AsyncPrincipals]):
    """`client.principals`. Methods raise PolicyError (no right `iam`) besides what they name."""

    def create(
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
        return self._portal.call(self._origin.create(name, project=project, rights=rights, key=key))

    def revoke(self, name: str, *, keep_made: bool = False) -> tuple[str, ...]:
        """Refuse a principal from now on, and close its connections; the names that were revoked.

        Whom it made goes with it, or becomes one's own with `keep_made`. Raises GoneError.
        """
        return self._portal.call(self._origin.revoke(name, keep_made=keep_made))

    def rotate(self, name: str, *, seed: str | None = None, key: str | None = None) -> Credentials:
        """Credentials with another key, for oneself or for whom one may revoke.

        The former key is refused from now on, and its connections are closed, one's own among them: they come
        back with the new key when it was saved to the file that their credentials were loaded from. `seed`:
        the new one, if the caller has kept it already. Raises GoneError, Conflict.
        """
        return self._portal.call(self._origin.rotate(name, seed=seed, key=key))

    def list(self, *, project: str | None = None) -> Iterator[Principal]:
        """Principals of one's own project and those below, or of one of them, by name. Raises GoneError."""
        return twin.each(self._portal, self._origin.list(project=project), twin.same)
