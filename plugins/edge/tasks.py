"""Background work of the node, all of which ends with the block that started it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from dsec.bus.errors import DsecError

log = logging.getLogger(__name__)


class Tasks:
    """A set of tasks; one that fails is logged and takes nothing else with it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls) -> AsyncIterator[Tasks]:
        """On leaving, what still runs is cancelled and waited for."""
        tasks = cls()
        try:
            yield tasks
        finally:
            tasks._closed = True
            while tasks._running:
                for task in tasks._running:
                    task.cancel()
                await asyncio.gather(*tasks._running, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any] | None:
        """Run `work` in the background; after the block nothing starts any more."""
        if self._closed:
            work.close()
            return None
        task = asyncio.create_task(work, name=name or None)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, DsecError):
            log.warning("%s: %s", task.get_name(), error)
        elif error is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
