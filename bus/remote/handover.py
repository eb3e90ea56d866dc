"""Passing a connected channel from a driver's process to the edge's: SCM_RIGHTS over a unix socket.

The driver offers a channel and gets a ticket, which travels over the bus; the edge shows the ticket at the
socket and is given the descriptor (unix(7)). A ticket is good once and for `KEPT` seconds. The socket lies in
the node's directory, where only root comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dsec.bus.errors import InfraError, NodeLost

KEPT: Final = 10.0
TICKET: Final = 32
"""Characters of a ticket."""
_KIND: Final = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


class Desk:
    """The driver's side; made by `running` only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offered: dict[str, socket.socket] = {}
        self._open: set[socket.socket] = set()
        self._loop = asyncio.get_running_loop()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, path: Path) -> AsyncIterator[Desk]:
        """Hand out at `path` while the block runs. Raises OSError."""
        path.unlink(missing_ok=True)
        desk, door = cls(path), socket.socket(socket.AF_UNIX, _KIND)
        try:
            with _address(path) as address:
                door.bind(address)
            path.chmod(0o600)
            door.listen(128)
            desk._watch(door, desk._accept)
            yield desk
        finally:
            desk._close(door)
            for left in (*desk._open, *desk._offered.values()):
                desk._close(left)
            path.unlink(missing_ok=True)

    def offer(self, channel: socket.socket) -> str:
        """A ticket for `channel`, which is closed here once it is handed out or nobody came."""
        ticket = secrets.token_hex(TICKET // 2)
        self._offered[ticket] = channel
        self._loop.call_later(KEPT, self._withdraw, ticket)
        return ticket

    def _withdraw(self, ticket: str) -> None:
        if channel := self._offered.pop(ticket, None):
            channel.close()

    def _accept(self, door: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            caller, _ = door.accept()
            caller.setblocking(False)  # noqa: FBT003 - as the library has it
            self._open.add(caller)
            self._watch(caller, self._serve)
            self._loop.call_later(KEPT, self._close, caller)

    def _serve(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError):
            channel = self._offered.pop(caller.recv(TICKET).decode("ascii", "replace"), None)
            if channel is not None:
                with channel:
                    socket.send_fds(caller, [b"\0"], [channel.fileno()])
        self._close(caller)

    def _watch(self, one: socket.socket, ready: Callable[[socket.socket], None]) -> None:
        self._loop.add_reader(one.fileno(), ready, one)

    def _close(self, one: socket.socket) -> None:
        """Repeatable."""
        self._open.discard(one)
        if one.fileno() >= 0:
            self._loop.remove_reader(one.fileno())
            one.close()


async def fetch(path: Path, ticket: str, *, timeout: float = 5.0) -> socket.socket:
    """The channel behind `ticket`, non-blocking. Raises NodeLost (nobody serves there), InfraError."""
    caller = socket.socket(socket.AF_UNIX, _KIND)
    with caller:
        try:
            with _address(path) as address:
                caller.connect(address)
            caller.send(ticket.encode())
            async with asyncio.timeout(timeout):
                await _readable(caller)
            _, descriptors, _, _ = socket.recv_fds(caller, 1, 1)
        except TimeoutError:
            raise InfraError(f"the driver at {path} does not hand over its channel") from None
        except OSError as error:
            raise NodeLost.during(f"the driver at {path} is away", error) from error
    if not descriptors:
        raise NodeLost(f"the driver at {path} knows nothing of the ticket")
    channel = socket.socket(fileno=descriptors[0])
    channel.setblocking(False)  # noqa: FBT003 - as the library has it
    return channel


async def _readable(one: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(one.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(one.fileno())


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Addresses hold 107 bytes, paths may be longer: it goes through a descriptor of the directory."""
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
