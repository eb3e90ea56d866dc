"""One watch of files, as the edge holds it: events by their numbers, kept until they are asked past.

Nothing is read from the kernel while enough waits here; the kernel's own queue then fills up, and tells when
it has overflowed. So what a watch costs is bounded, whatever goes on inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from itertools import islice
from typing import Final

from dsec.bus.errors import SpecError
from dsec.bus.file_events import FileEvent, Watched
from dsec.bus.threads import finish
from dsec.plugins.edge.tree import Tree

HELD: Final = 4096
"""Events that wait for their reader before no more are read."""
ANSWER: Final = 1024
"""Events of one answer, at most."""
ANSWER_CHARACTERS: Final = 64 * 1024


class Watch:
    """Of an open tree, to be closed when the task of `run` is done; that goes on until `close`."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._events: deque[FileEvent] = deque()
        self._first = 0
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._over = self._closed = False
        self.used = time.monotonic()

    async def run(self, turn: asyncio.Semaphore) -> None:
        """Collect events; `turn` bounds how many watches of a node do at once."""
        self._running = asyncio.current_task()
        while not (self._closed or self._over):
            await self._readable()
            async with turn:
                self._events.extend(await finish(self._tree.step))
            self._over = self._tree.over  # only now: the step that ends the tree has events of its own
            self._news.set()
            await self._spare()
        self._news.set()

    async def _readable(self) -> None:
        """Returns when there is something to do."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._tree.instance, ready.set)
        try:
            async with asyncio.timeout(self._tree.due):
                await ready.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(self._tree.instance)

    async def _spare(self) -> None:
        while len(self._events) >= HELD:
            self._room.clear()
            await self._room.wait()

    async def poll(self, cursor: int, until: float) -> Watched:
        """Events from `cursor` on; none when none has come by `until` (monotonic).

        Raises SpecError for a cursor that was given up, and what ended the watch once all before was told.
        """
        self.used = time.monotonic()
        self._forget(cursor)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                while not (self._events or self._closed or self._over):
                    self._news.clear()
                    await self._news.wait()
        self.used = time.monotonic()
        last = self._over and not self._events
        if last and not self._closed and self._tree.failed:
            raise self._tree.failed
        ended = last and self._tree.ended
        return Watched(events=_fitting(self._events), ended=ended, gone=self._closed)

    def _forget(self, cursor: int) -> None:
        if not 0 <= cursor - self._first <= len(self._events):
            raise SpecError(f"events before {self._first} were given up", field="cursor")
        while self._first < cursor:
            self._events.popleft()
            self._first += 1
        self._room.set()

    def close(self) -> None:
        """Repeatable. Whoever waits for it hears that it is gone."""
        self._closed = True
        self._news.set()
        if self._running is not None:
            self._running.cancel()


def _fitting(events: deque[FileEvent]) -> list[FileEvent]:
    """As many of the first as one answer holds; at least one."""
    fitting: list[FileEvent] = []
    characters = 0
    for event in islice(events, ANSWER):
        characters += len(event.path) + len(event.to or "")
        if fitting and characters > ANSWER_CHARACTERS:
            break
        fitting.append(event)
    return fitting
