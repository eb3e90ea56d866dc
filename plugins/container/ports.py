"""A connection to a port of a sandbox: its socket is made in the sandbox's network namespace."""

from __future__ import annotations

import asyncio
import errno
import socket
from functools import partial
from typing import Final

from dsec.bus.errors import InfraError, PortClosed
from dsec.plugins.container.visits import CLONE_NEWNET, Visitor

LOOPBACK: Final = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""Where the inside may listen; nothing else is tried."""
WITHIN: Final = 3.0
"""Seconds for a handshake; it takes longer only where nobody accepts."""
_NOBODY: Final = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH}


async def connected(visitor: Visitor, pidfd: int, port: int) -> socket.socket:
    """A non-blocking TCP connection. Raises PortClosed, ProcessLookupError, InfraError."""
    for family, address in LOOPBACK:
        made = await visitor.visit(pidfd, CLONE_NEWNET, partial(_made, family), undo=_unmade)
        if made is None:
            continue
        try:
            if await _reached(made, address, port):
                return made
        except BaseException:
            made.close()
            raise
        made.close()
    raise PortClosed(f"nothing listens on port {port} inside", field="port")


def _made(family: socket.AddressFamily) -> socket.socket | None:
    """None where the kernel has no such family."""
    try:
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    except OSError as error:
        if error.errno in _NOBODY:
            return None
        raise


def _unmade(made: socket.socket | None) -> None:
    if made is not None:
        made.close()


async def _reached(made: socket.socket, address: str, port: int) -> bool:
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(WITHIN):
            await asyncio.get_running_loop().sock_connect(made, (address, port))
    except TimeoutError:
        raise PortClosed(f"nobody accepts connections to port {port} inside", field="port") from None
    except OSError as error:
        if error.errno in _NOBODY:
            return False
        raise InfraError.during(f"connecting to port {port} inside", error) from error
    return True
