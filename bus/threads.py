"""Blocking work in threads that a cancelled caller does not leave behind half-done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

_Result = TypeVar("_Result")


async def finish(
    work: Callable[[], _Result],
    executor: Executor | None = None,
    *,
    undo: Callable[[_Result], object] = lambda _: None,
) -> _Result:
    """The result of `work`, done in a thread; a cancelled caller goes on only when the thread has ended, and
    what was made for nobody has been given to `undo`."""
    running = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await outlast(running, undo)
        raise


async def outlast(running: asyncio.Future[_Result], undo: Callable[[_Result], object]) -> None:
    """Wait until `running` has ended, cancelled or not, and give its result to `undo`."""
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):  # the first one is raised by whoever calls
            await asyncio.wait([running])
    if not running.cancelled() and running.exception() is None:
        undo(running.result())
