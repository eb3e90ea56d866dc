"""One connection to a port inside, as the edge holds it: bytes by absolute offsets, both ways.

A send is answered when the socket has taken it, and no more is read than one answer holds before the caller
has asked past it: so either side waits for the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from dsec.bus.errors import NoSuchConnection, SpecError
from dsec.bus.messages import ReceivedPort

CHUNK: Final = 256 * 1024
"""Bytes of one answer, at most."""
_BROKEN_OFF: Final = struct.pack("ii", 1, 0)


class Connection:
    """One connection; the offsets count from its beginning."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._sending, self._receiving = asyncio.Lock(), asyncio.Lock()
        self._sent = 0
        self._shut = False
        self._held = b""
        self._given = 0
        self._ended = ReceivedPort()
        self._closed = False
        self._waiting: set[asyncio.Event] = set()
        self.used = time.monotonic()

    async def send(self, offset: int, data: bytes, *, eof: bool, until: float) -> int:
        """The offset that was reached, by `until` (monotonic) at the latest; bytes below it are dropped.

        Raises NoSuchConnection when the inside takes no more, SpecError for a gap.
        """
        async with self._sending:
            if offset > self._sent:
                raise SpecError(f"bytes are missing: {self._sent} came so far", field="offset")
            end, rest = offset + len(data), memoryview(data)[self._sent - offset :]
            try:
                while rest and (taken := await self._take(rest, until)):
                    self._sent += taken
                    rest = rest[taken:]
                if eof and self._sent == end and not self._shut:
                    self._shut = True
                    self._socket.shutdown(socket.SHUT_WR)
            except OSError as error:
                self.close()
                raise NoSuchConnection.during("the inside broke the connection off", error) from error
        self.used = time.monotonic()
        return self._sent

    async def _take(self, data: memoryview, until: float) -> int:
        """How many bytes the socket took; none when it has no room until then."""
        while True:
            self._open()
            try:
                return self._socket.send(data)
            except BlockingIOError:
                if not await self._ready(until, asyncio.get_running_loop().add_writer):
                    return 0

    async def recv(self, offset: int, until: float) -> tuple[ReceivedPort, bytes]:
        """What comes after `offset`; nothing when nothing has come by `until` (monotonic)."""
        async with self._receiving:
            if not 0 <= offset - self._given <= len(self._held):
                raise SpecError(f"bytes before {self._given} were given up", field="offset")
            self._held, self._given = self._held[offset - self._given :], offset
            if not self._held and not (self._ended.eof or self._ended.reset):
                self._held = await self._come(until)
        self.used = time.monotonic()
        return self._ended, self._held

    async def _come(self, until: float) -> bytes:
        while True:
            self._open()
            try:
                data = self._socket.recv(CHUNK)
                self._ended = ReceivedPort(eof=not data)
                return data
            except BlockingIOError:
                if not await self._ready(until, asyncio.get_running_loop().add_reader):
                    return b""
            except OSError:
                self._ended = ReceivedPort(reset=True)
                return b""

    async def _ready(self, until: float, watch: Callable[..., None]) -> bool:
        """Whether the socket may be tried again before `until`."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        descriptor = self._socket.fileno()
        watch(descriptor, ready.set)
        self._waiting.add(ready)
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await ready.wait()
                return True
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(ready)
            if not self._closed:
                (loop.remove_reader if watch == loop.add_reader else loop.remove_writer)(descriptor)

    def _open(self) -> None:
        if self._closed:
            raise NoSuchConnection("the connection was closed")

    def close(self, *, reset: bool = False) -> None:
        """Repeatable. Whoever waits for it hears that it is gone."""
        if self._closed:
            return
        self._closed = True
        for one in self._waiting:
            one.set()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.remove_writer(self._socket)
        if reset:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _BROKEN_OFF)
        self._socket.close()
