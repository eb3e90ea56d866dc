"""The sync twin with the face of the asynchronous SDK, so that the same test bodies run for both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Final, Self

import pytest

from dsec.sdk.twin.base import Twin
from dsec.sdk.twin.source import EXCEPT

_END: Final = object()


class Face:
    """A twin whose methods are awaited: each call is made in a thread, as by a program without a loop."""

    def __init__(self, twin: Twin[Any]) -> None:
        self._twin: Any = twin

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what tests look at inside
            return getattr(self._twin._origin, name)
        why = EXCEPT.get((type(self._twin).__name__, name))
        if why is not None:
            pytest.skip(f"{name} has no twin: {why}")
        found = getattr(self._twin, name)
        if not inspect.ismethod(found):
            return faced(found)
        origin = getattr(type(self._twin._origin), name)
        if not inspect.iscoroutinefunction(origin):
            return lambda *args, **more: faced(found(*args, **more))

        async def call(*args: Any, **more: Any) -> Any:
            return faced(await asyncio.to_thread(found, *map(_plain, args), **more))

        return call

    def __len__(self) -> int:
        return len(self._twin)

    def __aiter__(self) -> AsyncIterator[Any]:
        return _awaited(iter(self._twin))

    async def __anext__(self) -> Any:
        piece = await asyncio.to_thread(next, self._twin, _END)
        if piece is _END:
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._twin.__enter__)
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await asyncio.to_thread(self._twin.__exit__, *error)


def faced(value: Any) -> Any:
    """What a method of a twin gave, as the SDK's would have."""
    if isinstance(value, Twin):
        return Face(value)
    if isinstance(value, AbstractContextManager) and hasattr(value, "gen"):
        return _block(value)
    return _awaited(value) if isinstance(value, Iterator) else value


async def _awaited(pieces: Iterator[Any]) -> AsyncIterator[Any]:
    try:
        while (piece := await asyncio.to_thread(next, pieces, _END)) is not _END:
            yield faced(piece)
    finally:
        if inspect.isgenerator(pieces):
            await asyncio.to_thread(pieces.close)


@asynccontextmanager
async def _block(manager: AbstractContextManager[Any]) -> AsyncIterator[Any]:
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield faced(value)
    except BaseException as error:
        if not await asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await asyncio.to_thread(manager.__exit__, None, None, None)


def _plain(argument: Any) -> Any:
    """An asynchronous iterable as one that the twin takes; its pieces come from this loop."""
    if not isinstance(argument, AsyncIterable):
        return argument
    loop, pieces = asyncio.get_running_loop(), aiter(argument)

    def each() -> Iterator[Any]:
        while (piece := asyncio.run_coroutine_threadsafe(_next(pieces), loop).result()) is not _END:
            yield piece

    return each()


async def _next(pieces: AsyncIterator[Any]) -> Any:
    return await anext(pieces, _END)
