"""The socket through which the host reaches a sandbox's PID 1: bound here, inherited listening there.

Socket addresses hold 107 bytes, home directories may be longer: the address goes through a descriptor of the
directory instead.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

NAME: Final = "door"


@contextmanager
def _address(directory: Path) -> Iterator[str]:
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)


def listening(directory: Path) -> socket.socket:
    """A new SEQPACKET socket that listens in `directory`. Raises OSError."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _address(directory) as address:
            door.bind(address)
        door.listen(8)
    except BaseException:
        door.close()
        raise
    return door


def connected(directory: Path) -> socket.socket:
    """A non-blocking connection to the socket in `directory`.

    Raises FileNotFoundError (no sandbox), ConnectionRefusedError (PID 1 is dead), BlockingIOError (it does
    not accept).
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        with _address(directory) as address:
            channel.connect(address)
    except BaseException:
        channel.close()
        raise
    return channel
