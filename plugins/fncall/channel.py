"""Messages to and from the parts inside: SEQPACKET sockets that pass descriptors, and descriptors that end.

What comes from inside is treated as hostile: it is bounded, and descriptors that nobody asked for are closed.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Final

LONGEST: Final = 256 * 1024
MOST_FDS: Final = 16
Heard = Callable[[bytes, list[int]], None]


class Channel:
    """One end; `heard` is called with each message and owns its descriptors, `ended` once when it breaks."""

    def __init__(self, connection: socket.socket, heard: Heard, ended: Callable[[], None]) -> None:
        connection.settimeout(0)
        self._socket = connection
        self._heard = heard
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection.fileno(), self._read)

    def send(self, data: bytes | Sequence[bytes], fds: Sequence[int] = ()) -> None:
        """Raises OSError when it is broken, or when the other end does not read."""
        parts = [data] if isinstance(data, bytes) else list(data)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._socket.sendmsg(parts, ancillary)

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, LONGEST, MOST_FDS)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if data:
            self._heard(data, fds)
            return
        close_all(fds)
        self.close()
        self._ended()

    def close(self) -> None:
        """Repeatable."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()


class Watched:
    """A process by its pidfd: `gone` is set when it has ended, with everything in a pid namespace it
    began.
    """

    def __init__(self, pidfd: int, told: Callable[[], None] | None = None) -> None:
        self._pidfd = pidfd
        self._told = told
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(pidfd, self._end)

    def kill(self) -> None:
        """Repeatable."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _end(self) -> None:
        self.close()
        if self._told is not None:
            self._told()

    def close(self) -> None:
        """Look no longer; repeatable."""
        if self._pidfd < 0:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        if not self.gone.done():
            self.gone.set_result(None)


def pair() -> tuple[socket.socket, socket.socket]:
    """A connected SEQPACKET pair."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def close_all(fds: Sequence[int]) -> None:
    for descriptor in fds:
        os.close(descriptor)


def memory(name: str, content: bytes = b"") -> int:
    """Descriptor of an anonymous file with `content`. Raises OSError."""
    made = os.memfd_create(name, os.MFD_CLOEXEC)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, made)
        view = memoryview(content)
        while view:
            view = view[os.write(made, view) :]
        os.lseek(made, 0, os.SEEK_SET)
        undo.pop_all()
    return made
