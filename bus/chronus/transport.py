"""Datagrams with descriptors over a SEQPACKET socket, in the event loop and never waiting.

The only part that knows how bytes travel: a byte stream to a virtual machine can take its place.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from dsec.bus.chronus.protocol import REPLY_DESCRIPTORS, REPLY_MAX

BURST: Final = 32  # datagrams taken before others get a turn
SEND_BUFFER: Final = 1 << 20
_ANCILLARY: Final = socket.CMSG_SPACE(REPLY_DESCRIPTORS * array.array("i").itemsize)

OnPacket = Callable[[bytes, tuple[int, ...]], None]
"""Called with each datagram and the descriptors it brought, which the callee then owns."""
OnClose = Callable[[str], None]
"""Called once, with the reason."""


class _Outgoing(NamedTuple):
    data: bytes
    descriptors: tuple[int, ...]
    close_after: tuple[int, ...]


class Transport:
    """Owns a connected SEQPACKET socket from construction to `close`. Must be made in a running loop."""

    def __init__(self, connected: socket.socket, on_packet: OnPacket, on_close: OnClose) -> None:
        self._socket = connected
        self._on_packet = on_packet
        self._on_close = on_close
        self._buffer = bytearray(REPLY_MAX + 1)
        self._view = memoryview(self._buffer)
        self._queue: deque[_Outgoing] = deque()
        self._loop = asyncio.get_running_loop()
        self._fd = connected.fileno()
        connected.settimeout(0)
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._loop.add_reader(self._fd, self._readable)

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def send(self, data: bytes, descriptors: tuple[int, ...] = (), close_after: tuple[int, ...] = ()) -> None:
        """Send in order, later if need be; `close_after` are closed as soon as they have been passed."""
        item = _Outgoing(data, descriptors, close_after)
        if self.closed:
            close_all(close_after)
        elif self._queue:
            self._queue.append(item)
        elif not self._try(item):
            self._queue.append(item)
            self._loop.add_writer(self._fd, self._writable)

    def close(self, reason: str = "closed here") -> None:
        """Repeatable. What was not sent yet is dropped."""
        if self.closed:
            return
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._fd = -1
        self._socket.close()
        for item in self._queue:
            close_all(item.close_after)
        self._queue.clear()
        self._on_close(reason)

    def _try(self, item: _Outgoing) -> bool:
        """False when the socket is full."""
        try:
            if item.descriptors:
                socket.send_fds(self._socket, [item.data], item.descriptors)
            else:
                self._socket.send(item.data)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            close_all(item.close_after)
            self.close(f"sending failed: {error}")
            return True
        close_all(item.close_after)
        return True

    def _writable(self) -> None:
        while self._queue and self._try(self._queue[0]):
            if self._queue:  # not closed meanwhile
                self._queue.popleft()
        if not self._queue and not self.closed:
            self._loop.remove_writer(self._fd)

    def _readable(self) -> None:
        for _ in range(BURST):
            if self.closed or not self._receive():
                return

    def _receive(self) -> bool:
        """Take one datagram; False when there is none."""
        try:
            size, ancillary, flags, _ = self._socket.recvmsg_into([self._view], _ANCILLARY)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.close(f"receiving failed: {error}")
            return False
        descriptors = _passed(ancillary)
        if size == 0 or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(descriptors)
            self.close("the inside closed it" if size == 0 else "a datagram with too much in it")
            return False
        self._on_packet(bytes(self._view[:size]), descriptors)
        return True


def _passed(ancillary: Iterable[tuple[int, int, bytes]]) -> tuple[int, ...]:
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return tuple(descriptors)


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
