"""Which quotas bound a project, as iam tells; asked again in the background while they are needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from dsec.bus import subjects
from dsec.bus.errors import DeadlineExceeded, NodeLost, Overloaded
from dsec.bus.handlers import result
from dsec.bus.messages import Message
from dsec.bus.projects import ROOT, AskBounds, AskSubtree, Bounds, Project, Subtree
from dsec.bus.transport import Bus

FRESH: Final = 1.0
"""Seconds after which iam is asked again in the background…"""
OLD: Final = 2.0
"""…and those after which a create waits for the answer: so soon a changed quota holds."""
TIMEOUT: Final = 2.0
MOST: Final = 20_000
"""Projects that are remembered."""


@dataclass(slots=True)
class _Known:
    bounds: tuple[Project, ...]
    at: float
    asking: bool = False


class Boundaries:
    """`spawn` runs a question in the background."""

    def __init__(self, bus: Bus, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._bus = bus
        self._spawn = spawn
        self._known: dict[str, _Known] = {}

    def none(self, project: str) -> bool:
        """Whether it is known that nothing bounds the project; O(1)."""
        if project == ROOT:
            return True
        known = self._known.get(project)
        return known is not None and not known.bounds and self._recent(project, known)

    async def of(self, project: str) -> tuple[Project, ...]:
        """The project's own bounds and those above it, nearest first.

        While iam is away, what was known last serves; raises Overloaded when that is nothing.
        """
        known = self._known.get(project)
        if project == ROOT or known is None:
            return () if project == ROOT else await self._ask(project)
        if self._recent(project, known):
            return known.bounds
        try:
            return await self._ask(project)
        except Overloaded:
            known.at = time.monotonic() - FRESH  # not every create waits for it
            return known.bounds

    async def subtree(self, project: str) -> frozenset[str]:
        """The project and all below it. Raises Overloaded when iam is away."""
        asked = AskSubtree(project=project)
        answer = Subtree.model_validate(await self._answer(subjects.QUOTA_SUBTREE, asked))
        return frozenset(answer.projects)

    def _recent(self, project: str, known: _Known) -> bool:
        """Whether the knowledge may be used without waiting; it is renewed in time, once at a time."""
        age = time.monotonic() - known.at
        if FRESH < age <= OLD and not known.asking:
            known.asking = True
            self._spawn(self._renew(project, known))
        return age <= OLD

    async def _renew(self, project: str, known: _Known) -> None:
        try:
            await self._ask(project)
        finally:
            known.asking = False

    async def _ask(self, project: str) -> tuple[Project, ...]:
        answer = Bounds.model_validate(await self._answer(subjects.QUOTA_BOUNDS, AskBounds(project=project)))
        if len(self._known) >= MOST:
            self._known.clear()
        bounds = tuple(answer.bounds)
        self._known[project] = _Known(bounds, time.monotonic())
        return bounds

    async def _answer(self, subject: str, asked: Message) -> Any:
        try:
            answer = await self._bus.request(subject, asked.model_dump_json().encode(), timeout=TIMEOUT)
        except (NodeLost, DeadlineExceeded) as error:
            raise Overloaded(
                "iam does not tell the project's quotas now; try again", retry_after=1.0
            ) from error
        return result(answer.data)
