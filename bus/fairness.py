"""One project does not take a service from the others: each has a share of what is done at once.

A call that waits (a command that does not read, a large writable layer) keeps its place in the service. With
one common gate a tenant that fills it stops everybody; with a gate for each project it stops itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from dsec.bus.errors import Overloaded

PARTS: Final = 4
"""Projects that together can use all of a service."""
RETRY_AFTER: Final = 0.5


@dataclass(slots=True)
class _Project:
    gate: asyncio.Semaphore
    held: int = 0


class Shares:
    """Places of one service: `concurrency` in all, a quarter of them for one project.

    A project may have as many calls in the service's hands, waiting ones included, as it does at once in all.
    """

    def __init__(self, concurrency: int) -> None:
        self._all = asyncio.Semaphore(concurrency)
        self._most = concurrency
        self._share = max(1, concurrency // PARTS)
        self._projects: dict[str, _Project] = {}

    def place(self, project: str) -> Place:
        """Wait for a place in an `async with`. Raises Overloaded at once when the project has too many
        waiting already.
        """
        return Place(self, project)

    async def _enter(self, project: str) -> _Project:
        one = self._projects.get(project)
        if one is None:
            one = self._projects[project] = _Project(asyncio.Semaphore(self._share))
        if one.held >= self._most:
            raise Overloaded("this project has too many requests under way", retry_after=RETRY_AFTER)
        one.held += 1
        try:
            await one.gate.acquire()
            try:
                await self._all.acquire()
            except BaseException:
                one.gate.release()
                raise
        except BaseException:
            self._left(project, one)
            raise
        return one

    def _leave(self, project: str, one: _Project) -> None:
        self._all.release()
        one.gate.release()
        self._left(project, one)

    def _left(self, project: str, one: _Project) -> None:
        one.held -= 1
        if not one.held:
            del self._projects[project]


class Place:
    """One call's place; a class of its own since every request takes one."""

    __slots__ = ("_one", "_project", "_shares")

    def __init__(self, shares: Shares, project: str) -> None:
        self._shares = shares
        self._project = project
        self._one: _Project | None = None

    async def __aenter__(self) -> None:
        self._one = await self._shares._enter(self._project)

    async def __aexit__(self, *_: object) -> None:
        if self._one is not None:
            self._shares._leave(self._project, self._one)
