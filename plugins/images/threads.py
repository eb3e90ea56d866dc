"""Blocking work in threads that a cancelled caller does not leave behind half-done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

_Result = TypeVar("_Result")


async def finish(work: Callable[[], _Result], executor: Executor | None = None) -> _Result:
    """The result of `work`, done in a thread; a cancelled caller goes on only when the thread has ended."""
    running = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):  # a second one: the first is raised below
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # is told to nobody: the cancellation is what counts
        raise
