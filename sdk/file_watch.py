"""A watch of files inside, read by long polls: see `Files.watch`.

A watch that its node has forgotten (the edge was restarted, the sandbox was stopped and started) is opened
again, and that is told: what happened in between is not known.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, Self

from dsec.bus.errors import DsecError
from dsec.bus.file_events import FileEvent, Watched
from dsec.sdk.link import Link, new_operation

ATTEMPT: Final = 15.0
"""Seconds; the node answers within ten, events or none."""


class FileWatch:
    """The events of one watch, made by `Files.watch`; ends when the watched path is gone.

    Every step raises NoSuchSandbox, NodeLost and BrokerDown, TooLarge once there are too many directories,
    SpecError once the sandbox is stopped, NoSuchFile when the node was restarted and the path is gone.
    """

    def __init__(self, link: Link, sandbox: str, path: str, *, recursive: bool) -> None:
        self._link = link
        self._subject = link.subject("file", "watch", sandbox)
        self._path = path
        self._recursive = recursive
        self._name = ""
        self._given = 0
        self._events: deque[FileEvent] = deque()
        self._ended = False

    def __aiter__(self) -> Self:
        """The next events, as they happen."""
        return self

    async def __anext__(self) -> FileEvent:
        """A poll acknowledges what was handed out before, so that nothing is lost on the way."""
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            await self._poll()
        event = self._events.popleft()
        self._given += 1
        return event

    async def _poll(self) -> None:
        told = await self._ask(cursor=self._given)
        if told.gone:
            await self._open()
            self._events.append(FileEvent(kind="restarted", path=self._path))
            self._given = -1  # this event has no number at the node
        self._events.extend(told.events)
        self._ended = told.ended

    async def _open(self) -> None:
        self._name, self._given = new_operation(), 0
        await self._ask()

    async def _close(self) -> None:
        with contextlib.suppress(DsecError):
            await self._ask(close=True, patience=5.0)

    async def _ask(self, *, patience: float | None = None, **more: Any) -> Watched:
        body = {"path": self._path, "recursive": self._recursive, "watch": self._name, **more}
        answer = await self._link.call(self._subject, body, attempt=ATTEMPT, patience=patience)
        return Watched.model_validate(answer or {})

    @classmethod
    @contextlib.asynccontextmanager
    async def _running(
        cls, link: Link, sandbox: str, path: str, *, recursive: bool
    ) -> AsyncIterator[FileWatch]:
        watch = cls(link, sandbox, path, recursive=recursive)
        try:
            await watch._open()
            yield watch
        finally:
            await watch._close()


watching = FileWatch._running
"""For `Files` alone: neither a user nor a twin sees it."""
