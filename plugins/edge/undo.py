"""Undoing the stages of a create: in reverse, each whatever became of the others."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

log = logging.getLogger(__name__)


class Undo:
    """What takes back the stages that were done."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack

    def later(self, what: str, undo: Callable[[], Awaitable[None]]) -> None:
        """Should a later stage fail, await `undo`; its own failure is logged and left to the reaper."""

        async def quietly() -> None:
            try:
                await undo()
            except Exception:
                log.exception("undoing %s", what)

        self._stack.push_async_callback(quietly)

    def keep(self) -> None:
        """All stages are done: nothing is undone any more."""
        self._stack.pop_all()


@contextlib.asynccontextmanager
async def undoing() -> AsyncIterator[Undo]:
    """Undo what was noted when the block is left before `keep`."""
    async with contextlib.AsyncExitStack() as stack:
        yield Undo(stack)
