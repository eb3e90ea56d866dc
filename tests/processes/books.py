"""A driver that keeps books: its insides are socket pairs. For what lies between driver and edge."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from dsec.bus.driver import Channel, Death, Handle, Info, Order, Rootfs
from dsec.bus.errors import Failure, NoSuchSandbox, Unsupported
from dsec.bus.spec import Limits, Spec

INFO = Info("books", 3, frozenset({"pids"}), Limits(pids=7))
ROOTFS = Rootfs(Path("/a"), Path("/b"), 100_000)


def order(sandbox: str, **limits: int) -> Order:
    return Order(sandbox, Spec(image="base"), Limits(**limits))


class Books:
    """`kept` outlives an instance, as a sandbox does its driver's process; `slow` holds creates back."""

    def __init__(self, kept: dict[str, bool]) -> None:
        self.kept = kept
        self.known: set[str] = set()
        self.slow = asyncio.Event()
        self.slow.set()
        self.closed = False
        self._deaths: asyncio.Queue[Death] = asyncio.Queue()

    def info(self) -> Info:
        return INFO

    async def check(self) -> None: ...

    async def create(self, wanted: Order, rootfs: Rootfs) -> Handle:
        if wanted.limits.memory is not None:
            raise Unsupported("books do not limit memory", field="limits.memory")
        await self.slow.wait()
        self.kept[wanted.sandbox] = True
        self.known.add(wanted.sandbox)
        return Handle(wanted.sandbox, "books", 3, f"{rootfs.path}\0".encode())

    async def channel(self, sandbox: str) -> Channel:
        self._check(sandbox)
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine:
            mine.send(sandbox.encode())
        return Channel(theirs, descriptors=True, cgroup=Path("/c"))

    async def destroy(self, sandbox: str) -> None:
        self.kept.pop(sandbox, None)
        self.known.discard(sandbox)

    async def inspect(self, sandbox: str) -> Death | None:
        self._check(sandbox)
        return None if self.kept[sandbox] else Death(sandbox, Failure.LIMIT, "it ended")

    def watch(self) -> AsyncIterator[Death]:
        return self._watch()

    async def _watch(self) -> AsyncIterator[Death]:
        while True:
            yield await self._deaths.get()

    async def recover(self, handle: Handle) -> None:
        if handle.sandbox not in self.kept:
            raise NoSuchSandbox("gone")
        self.known.add(handle.sandbox)

    async def close(self) -> None:
        self.closed = True

    def die(self, sandbox: str) -> None:
        self.kept[sandbox] = False
        self._deaths.put_nowait(Death(sandbox, Failure.LIMIT, "it ended"))

    def _check(self, sandbox: str) -> None:
        if sandbox not in self.known:
            raise NoSuchSandbox(f"{sandbox} is not in the books")


class PausingBooks(Books):
    """Can pause, too."""

    async def pause(self, sandbox: str) -> None:
        self._check(sandbox)

    async def resume(self, sandbox: str) -> None:
        self._check(sandbox)


class ReclaimingBooks(PausingBooks):
    """Takes memory from what is paused, too."""

    reclaimed: list[str]

    async def pause(self, sandbox: str) -> None:
        self.reclaimed = []
        await super().pause(sandbox)

    async def reclaim(self, sandbox: str) -> None:
        self._check(sandbox)
        self.reclaimed.append(sandbox)
