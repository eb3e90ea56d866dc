"""What every class of `dsec.sync` is: an object of the SDK, and the portal to the loop in which it lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from dsec.sdk.twin.portal import Block, Portal

A = TypeVar("A")
T = TypeVar("T")
B = TypeVar("B")


class Manager(Protocol):
    """What is used with `async with`."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


M = TypeVar("M", bound=Manager)


class Twin(Generic[A]):
    """An object of the SDK whose methods are called from plain threads."""

    def __init__(self, portal: Portal, origin: A) -> None:
        self._portal = portal
        self._origin = origin

    def __repr__(self) -> str:
        return repr(self._origin)


class Managed(Twin[M]):
    """One that is used with `with`."""

    def __init__(self, portal: Portal, origin: M) -> None:
        super().__init__(portal, origin)
        self._blocks: list[Block[Any]] = []

    def __enter__(self) -> Self:
        block: Block[Any] = Block(self._portal, self._origin)
        block.__enter__()
        self._blocks.append(block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._blocks.pop().__exit__(kind, error, trace)


class Root(Managed[M]):
    """The client: its block is the portal's life."""

    def __enter__(self) -> Self:
        self._portal.open()
        try:
            return super().__enter__()
        except BaseException:
            self._portal.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return super().__exit__(kind, error, trace)
        finally:
            self._portal.close()


@contextmanager
def block(
    portal: Portal, manager: AbstractAsyncContextManager[A, bool | None], make: Callable[[A], T]
) -> Iterator[T]:
    """What an asynchronous context manager gives, as `make` makes it, while the block runs."""
    with Block(portal, manager) as value:
        yield make(value)


def each(portal: Portal, source: AsyncIterator[A], make: Callable[[A], T]) -> Generator[T, None, None]:
    """What an asynchronous iterator gives, as `make` makes it."""
    pieces = portal.iterate(source)
    try:
        for piece in pieces:
            yield make(piece)
    finally:
        pieces.close()


def same(value: T) -> T:
    """For what needs no twin."""
    return value


_END: Final = object()


def fed(given: Any) -> Any:
    """`given`, an iterable of bytes as an asynchronous one: it may wait, so that it runs in other threads."""
    if isinstance(given, (bytes, bytearray, str)) or not isinstance(given, Iterable):
        return given
    return _fed(iter(given))


async def _fed(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await asyncio.to_thread(next, pieces, _END)) is not _END:
        assert isinstance(piece, bytes)
        yield piece


__all__ = [
    "AbstractContextManager",
    "Managed",
    "Root",
    "Twin",
    "block",
    "each",
    "fed",
    "same",
]
