"""Standard input of one command, written at absolute offsets: what was written before is dropped.

How much was written lies beside the spool, so that a restarted node goes on at the same offset.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios
from collections.abc import Awaitable, Callable
from pathlib import Path
from struct import Struct
from typing import Final

from dsec.bus.errors import NoSuchExec, SpecError
from dsec.plugins.edge.disk import room_for

_OFFSET: Final = Struct("=Q")
SMALL: Final = 4096
"""Bytes that every new pipe takes at once."""


class Stdin:
    """`descriptor` is the pipe's write end, not blocking; `close` ends it on both sides. Raises DiskFull."""

    def __init__(self, descriptor: int, close: Callable[[], Awaitable[None]], base: Path) -> None:
        self._descriptor = descriptor
        self._close = close
        self._progress = base.with_suffix(".stdin")
        self._rest = base.with_suffix(".feed")
        self._lock = asyncio.Lock()
        self._ended = False
        self.offset = self._open()

    def _open(self) -> int:
        """How much a former process wrote. The file has its size from now on: no note needs room."""
        with room_for("a command's standard input (tmpfs)"), self._progress.open("a+b") as file:
            file.seek(0)
            written = file.read(_OFFSET.size)
            if len(written) < _OFFSET.size:
                file.truncate(0)
                file.write(written := _OFFSET.pack(0))
        return int(_OFFSET.unpack(written)[0])

    def _note(self) -> None:
        with contextlib.suppress(FileNotFoundError), self._progress.open("r+b") as file:  # gone: released
            file.write(_OFFSET.pack(self.offset))

    async def write(self, offset: int, data: bytes) -> None:
        """`data` at `offset`. Raises SpecError for a gap, NoSuchExec when the command reads no more."""
        async with self._lock:
            if offset > self.offset:
                raise SpecError(f"stdin stands at {self.offset}; send what is missing", field="offset")
            rest = memoryview(data)[self.offset - offset :]
            while rest:
                rest = rest[await self._some(rest) :]

    def keep(self, data: bytes) -> None:
        """Have a copy of what came with the start on tmpfs, should the node be restarted. Raises DiskFull."""
        if len(data) > SMALL:
            with room_for("a command's standard input (tmpfs)"):
                self._rest.write_bytes(data)

    async def feed(self, data: bytes, *, eof: bool) -> None:
        """Write what came with the start, and `keep` has."""
        await self.write(0, data)
        if eof:
            await self.end()
        self._rest.unlink(missing_ok=True)

    async def resume(self, *, eof: bool) -> None:
        """Go on with what a former process began to feed."""
        if self._rest.exists():
            await self.feed(self._rest.read_bytes(), eof=eof)
        elif eof:
            await self.end()

    def resize(self, rows: int, columns: int) -> None:
        """Of a terminal. Raises NoSuchExec when it was hung up."""
        if self._ended:
            raise NoSuchExec("the command's terminal was hung up", field="exec")
        termios.tcsetwinsize(self._descriptor, (rows, columns))

    async def end(self) -> None:
        """End of file; repeatable."""
        async with self._lock:
            if not self._ended:
                self._ended = True
                await self._close()

    async def _some(self, data: memoryview) -> int:
        if self._ended:
            raise NoSuchExec("the command's stdin was closed", field="exec")
        try:
            written = os.write(self._descriptor, data)
        except BlockingIOError:
            await _writable(self._descriptor)
            return 0
        except OSError:
            raise NoSuchExec("the command does not read its stdin any more", field="exec") from None
        self.offset += written
        self._note()
        return written


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(descriptor, _tell, ready)
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)


def _tell(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
