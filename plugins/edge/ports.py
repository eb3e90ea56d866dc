"""Connections to what listens inside, carried over the bus (docs/adr/0026-ports.md).

The edge holds the socket; the caller sends and receives by requests with absolute offsets, so that a repeated
one changes nothing. One that nobody asks for is closed after `LEASE` seconds.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Final

from dsec.bus.driver import CanConnect
from dsec.bus.errors import LimitError, NoSuchConnection, PortClosed, Unsupported
from dsec.bus.frames import pack_data, unpack_data
from dsec.bus.handlers import Call, Handler, ok, typed
from dsec.bus.messages import ClosePort, OpenPort, RecvPort, Request, SendPort
from dsec.plugins.edge.connection import Connection
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.once import Once
from dsec.plugins.edge.sandboxes import Sandbox

MOST: Final = 256
"""Connections of one sandbox at a time."""
POLL: Final = 10.0
"""Seconds that a request waits for the inside, at most."""
LEASE: Final = 60.0
LOOK: Final = 0.05
"""Seconds between attempts to reach somebody who does not listen yet."""


class Ports:
    """Handlers of `port.*` for one node. All raise NoSuchSandbox and SpecError."""

    def __init__(self, node: Node, once: Once) -> None:
        self._node = node
        self._once = once

    def handlers(self) -> dict[tuple[str, str], Handler]:
        """By noun and verb."""
        return {
            ("port", "open"): typed(OpenPort, self._once.around(self.open)),
            ("port", "send"): typed(SendPort, self.send, raw=True),
            ("port", "recv"): typed(RecvPort, self.recv),
            ("port", "close"): typed(ClosePort, self.close),
        }

    async def open(self, call: Call, request: OpenPort) -> bytes:
        """A connection under the request's operation id. Raises PortClosed, LimitError, Unsupported."""
        sandbox = self._node.sandboxes.get(call.address.sandbox, call.address.project)
        guest = sandbox.inside()
        if len(sandbox.connections) >= MOST:
            raise LimitError(f"the sandbox has its {MOST} connections", field="connections")
        connected = await self._reach(sandbox, request)
        if request.probe or sandbox.guest is not guest:
            connected.close()
            sandbox.inside()
            return ok({"connection": None})
        sandbox.connections[request.op] = Connection(connected)
        at, target = call.address, f"{sandbox.id}:{request.port}"
        self._node.auditor.note(at, call.subject, outcome="ok", target=target)
        return ok({"connection": request.op})

    async def _reach(self, sandbox: Sandbox, request: OpenPort) -> socket.socket:
        if not isinstance(sandbox.driver, CanConnect):
            raise Unsupported(f"backend {sandbox.handle.driver!r} reaches no ports", field="backend")
        until = time.monotonic() + min(request.within, request.deadline / 1000 - time.time())
        while True:
            try:
                return await sandbox.driver.connect(sandbox.id, request.port)
            except PortClosed:
                if time.monotonic() + LOOK > until:
                    raise
            await asyncio.sleep(LOOK)
            sandbox.inside()

    async def send(self, call: Call, request: SendPort) -> bytes:
        """The offset that was reached: all of it, or what the inside has taken within `POLL` seconds."""
        sandbox = self._node.sandboxes.get(call.address.sandbox, call.address.project)
        sandbox.inside()
        data = unpack_data(call.data)[1]
        connection = _of(sandbox, request.connection)
        reached = await connection.send(request.offset, data, eof=request.eof, until=_until(request))
        return ok({"offset": reached})

    async def recv(self, call: Call, request: RecvPort) -> bytes:
        """Raw: what has come, within `POLL` seconds. Asking alone is no use of the sandbox."""
        sandbox = self._node.sandboxes.get(call.address.sandbox, call.address.project, use=False)
        ended, data = await _of(sandbox, request.connection).recv(request.offset, _until(request))
        if data:
            sandbox.used = time.monotonic()
        return pack_data(ended.model_dump_json().encode(), data)

    async def close(self, call: Call, request: ClosePort) -> bytes:
        """Repeatable, and silent for one that is gone."""
        sandbox = self._node.sandboxes.get(call.address.sandbox, call.address.project, use=False)
        connection = sandbox.connections.pop(request.connection, None)
        if connection is not None:
            connection.close(reset=request.reset)
        return ok()


def expire(sandbox: Sandbox, now: float) -> None:
    """Close what nobody has asked for since `LEASE` seconds; `now` is monotonic."""
    for name, connection in list(sandbox.connections.items()):
        if now - connection.used > LEASE:
            del sandbox.connections[name]
            connection.close(reset=True)


def _of(sandbox: Sandbox, connection: str) -> Connection:
    found = sandbox.connections.get(connection)
    if found is None:
        raise NoSuchConnection(f"no connection {connection} to this sandbox", field="connection")
    return found


def _until(request: Request) -> float:
    """Monotonic; a little before the caller gives up."""
    return time.monotonic() + min(POLL, max(0.0, request.deadline / 1000 - time.time() - 0.5))
