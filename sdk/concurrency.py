"""Several requests in flight, with a bound on how many and on what they hold."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def each(items: AsyncIterator[T], work: Callable[[T], Awaitable[object]], limit: int) -> None:
    """Do `work` for every item, `limit` at a time; an item is asked for only when there is room for it.

    Raises the first failure, after the others were cancelled.
    """
    gate = asyncio.Semaphore(limit)

    async def one(item: T) -> None:
        try:
            await work(item)
        finally:
            gate.release()

    try:
        async with asyncio.TaskGroup() as group:
            await gate.acquire()
            async for item in items:
                group.create_task(one(item))
                await gate.acquire()
    except BaseExceptionGroup as failures:
        raise _first(failures) from None


async def ahead(jobs: Iterable[Coroutine[Any, Any, R]], limit: int) -> AsyncIterator[R]:
    """Results of `jobs` in order, `limit` of them running ahead of the consumer."""
    running: deque[asyncio.Task[R]] = deque()
    source = iter(jobs)
    try:
        while True:
            while len(running) < limit and (job := next(source, None)) is not None:
                running.append(asyncio.create_task(job))
            if not running:
                return
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def stream_of(items: Iterable[T]) -> AsyncIterator[T]:
    """`items` as an asynchronous iterator."""
    for item in items:
        yield item


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
