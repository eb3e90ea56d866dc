"""One project does not take a service from the others: each has a share of what is done at once.

A call that waits (a command that does not read, a large writable layer) keeps its place in the service. With
one common gate a tenant that fills it stops everybody; with a gate for each project it stops itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
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

    @contextlib.asynccontextmanager
    async def place(self, project: str) -> AsyncIterator[None]:
        """Wait for a place. Raises Overloaded at once when the project has too many waiting already."""
        one = self._projects.setdefault(project, _Project(asyncio.Semaphore(self._share)))
        if one.held >= self._most:
            raise Overloaded("this project has too many requests under way", retry_after=RETRY_AFTER)
        one.held += 1
        try:
            async with one.gate, self._all:
                yield
        finally:
            one.held -= 1
            if not one.held:
                del self._projects[project]
