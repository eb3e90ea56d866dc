"""The warm workers of a node: started when first asked for, ended when idle, damaged or in the way of
others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Self

from dsec.bus import ids
from dsec.bus.driver import Images
from dsec.bus.errors import DsecError, LimitError, Overloaded
from dsec.plugins.fncall.settings import Settings
from dsec.plugins.fncall.worker import Key, Tools, Worker

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    """A worker, or its start; `stack` holds everything of it."""

    starting: asyncio.Task[Worker]
    stack: contextlib.AsyncExitStack
    worker: Worker | None = None
    users: int = 0
    used: float = field(default_factory=time.monotonic)

    @property
    def damaged(self) -> bool:
        return self.worker is not None and not self.worker.good


class Pool:
    """See the module; made by `running`."""

    def __init__(self, images: Images, tools: Tools, node: str, settings: Settings) -> None:
        self._images = images
        self._tools = tools
        self._node = node
        self._settings = settings
        self._entries: dict[Key, _Entry] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._entries)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, images: Images, tools: Tools, node: str, settings: Settings
    ) -> AsyncIterator[Self]:
        pool = cls(images, tools, node, settings)
        keeper = asyncio.create_task(pool._keep(), name="idle workers")
        try:
            yield pool
        finally:
            keeper.cancel()
            for key in list(pool._entries):
                pool._drop(key)
            await asyncio.gather(keeper, *pool._ending, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def worker(self, key: Key) -> AsyncIterator[tuple[Worker, bool]]:
        """The worker for `key`, and whether it was warm. Raises as Worker.started, and Overloaded."""
        entry, warm = self._entry(key)
        entry.users += 1
        try:
            yield await self._started(key, entry), warm
        finally:
            entry.users -= 1
            entry.used = time.monotonic()
            if entry.damaged and self._entries.get(key) is entry:
                self._drop(key)

    def _entry(self, key: Key) -> tuple[_Entry, bool]:
        entry = self._entries.get(key)
        if entry is not None and entry.damaged:
            self._drop(key)
            entry = None
        if entry is not None:
            return entry, entry.worker is not None
        self._make_room(key.project)
        stack = contextlib.AsyncExitStack()
        name = ids.sandbox_on(self._node)
        starting = Worker.started(key, name, self._images, self._tools, self._settings)
        task = asyncio.create_task(stack.enter_async_context(starting), name=f"worker of {key.project}")
        entry = self._entries[key] = _Entry(task, stack)
        return entry, False

    async def _started(self, key: Key, entry: _Entry) -> Worker:
        """Callers that want the same worker wait for one start; one that is cancelled does not stop it."""
        try:
            entry.worker = await asyncio.shield(entry.starting)
            return entry.worker
        except TimeoutError:
            self._forget(key, entry)
            why = f"importing took over {self._settings.warm_within:g} s"
            raise LimitError(why, field="imports") from None
        except DsecError:
            self._forget(key, entry)
            raise

    def _forget(self, key: Key, entry: _Entry) -> None:
        if self._entries.get(key) is entry:
            del self._entries[key]

    def _make_room(self, project: str) -> None:
        """At most so many, of one project half of them: the one idle longest goes. Raises Overloaded."""
        own = [key for key in self._entries if key.project == project]
        crowded = len(own) >= max(1, self._settings.workers // 2)
        if len(self._entries) < self._settings.workers and not crowded:
            return
        candidates = {key: self._entries[key] for key in (own if crowded else self._entries)}
        idle = [(one.used, key) for key, one in candidates.items() if not one.users and one.starting.done()]
        if not idle:
            raise Overloaded("all warm workers that there can be are busy", retry_after=1.0)
        self._drop(min(idle, key=lambda one: one[0])[1])

    def _drop(self, key: Key) -> None:
        """End a worker; those who still use it get an error."""
        entry = self._entries.pop(key)
        task = asyncio.create_task(_end(entry), name=f"end of a worker of {key.project}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._settings.idle / 2))
            late = time.monotonic() - self._settings.idle
            for key, entry in list(self._entries.items()):
                if not entry.users and entry.starting.done() and (entry.used < late or entry.damaged):
                    self._drop(key)


async def _end(entry: _Entry) -> None:
    with contextlib.suppress(DsecError, TimeoutError):
        await entry.starting
    try:
        await entry.stack.aclose()
    except DsecError:
        log.exception("ending a worker")
