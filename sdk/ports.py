"""Ports of a sandbox, from this machine: connections carried over the bus, and listeners that forward.

Only the broker need be reachable. A listener is on this machine's 127.0.0.1, the kernel chooses its port.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, Self

from dsec.bus.errors import DsecError, PortClosed, SpecError
from dsec.bus.frames import unpack_data
from dsec.bus.messages import ReceivedPort
from dsec.sdk.link import Link, new_operation

CHUNK: Final = 256 * 1024
"""Bytes of one request."""
ATTEMPT: Final = 15.0
"""Seconds; the node answers within ten, bytes or none."""
WITHIN: Final = 4.0
"""Seconds that one request waits for somebody who listens."""
TOUCH: Final = 20.0
"""Seconds until the node hears of a connection whose reader here is slow; it forgets one after a minute."""
AGAIN: Final = 0.2
"""Seconds between two probes by HTTP."""
PROBE: Final = 5.0
"""Seconds that a server has to answer one."""
_BROKEN_OFF: Final = struct.pack("ii", 1, 0)


class Tunnel:
    """A connection to a port inside. Every method raises NoSuchConnection once it has ended otherwise."""

    def __init__(self, link: Link, sandbox: str, name: str) -> None:
        self._link = link
        self._sandbox = sandbox
        self._name = name
        self._sent = self._received = 0

    @classmethod
    async def open(cls, link: Link, sandbox: str, port: int, *, within: float = 0.0) -> Self:
        """Raises PortClosed when nobody listens within so many seconds (5 at the most), LimitError,
        Unsupported."""
        op = new_operation()
        await link.call(link.subject("port", "open", sandbox), {"port": port, "within": within}, op=op)
        return cls(link, sandbox, op)

    async def send(self, data: bytes, *, eof: bool = False) -> None:
        """Returns when the inside has taken all of it; with `eof` nothing follows."""
        end = self._sent + len(data)
        subject = self._link.subject("port", "send", self._sandbox)
        while True:
            rest = data[len(data) - (end - self._sent) :]
            header = {"connection": self._name, "offset": self._sent, "eof": eof}
            answer = await self._link.call(subject, header, data=rest, attempt=ATTEMPT)
            self._sent = max(self._sent, int(answer["offset"]))
            if self._sent >= end:
                return

    async def touch(self) -> None:
        """It is in use."""
        header = {"connection": self._name, "offset": 0}
        await self._link.call(self._link.subject("port", "send", self._sandbox), header, data=b"")

    async def recv(self) -> bytes:
        """What comes next; empty at the end. Raises ConnectionResetError when the inside broke it off."""
        subject = self._link.subject("port", "recv", self._sandbox)
        while True:
            header = {"connection": self._name, "offset": self._received}
            raw, data = unpack_data(await self._link.ask(subject, header, attempt=ATTEMPT))
            if data:
                self._received += len(data)
                return data
            told = ReceivedPort.model_validate_json(raw)
            if told.reset:
                raise ConnectionResetError("the inside broke the connection off")
            if told.eof:
                return b""

    async def close(self, *, reset: bool = False) -> None:
        """Repeatable; whatever happens, the node forgets an unused connection."""
        header = {"connection": self._name, "reset": reset}
        with contextlib.suppress(DsecError):
            await self._link.ask(self._link.subject("port", "close", self._sandbox), header, patience=5.0)


async def carry(
    tunnel: Tunnel,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    broke: Callable[[Exception], object] = lambda _: None,
) -> None:
    """Both ways until both have ended; one half may end before the other.

    What is broken off, by either side or by the platform, is told to `broke`, and then to both sides.
    """
    broken = True
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_up(tunnel, reader))
            both.create_task(_down(tunnel, writer))
        broken = False
    except* (DsecError, ConnectionError) as failures:
        broke(failures.exceptions[0])
    finally:
        _shut(writer, reset=broken)
        await asyncio.shield(tunnel.close(reset=broken))


async def _up(tunnel: Tunnel, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(CHUNK):
        await tunnel.send(data)
    await tunnel.send(b"", eof=True)


async def _down(tunnel: Tunnel, writer: asyncio.StreamWriter) -> None:
    while data := await tunnel.recv():
        writer.write(data)
        draining = asyncio.ensure_future(writer.drain())
        try:
            while not (await asyncio.wait([draining], timeout=TOUCH))[0]:
                await tunnel.touch()
            draining.result()
        finally:
            draining.cancel()
    if writer.can_write_eof():
        writer.write_eof()


def _shut(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if not reset:
        writer.close()
        return
    connected = writer.get_extra_info("socket")
    if connected is not None and connected.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _BROKEN_OFF)
    writer.transport.abort()


class Carriers:
    """The connections that are carried, of one forwarded port or of one `connect`; ended by `close`."""

    def __init__(self, link: Link, sandbox: str, port: int) -> None:
        self._link = link
        self._sandbox = sandbox
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._given: asyncio.StreamWriter | None = None
        self.url = ""

    async def listen(self, local: int = 0) -> str:
        """Forward connections to a port of 127.0.0.1; its URL. Raises SpecError when it is in use."""
        try:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", local, limit=CHUNK)
        except OSError as error:
            raise SpecError(
                f"port {local} of this machine cannot be listened to: {error}", field="local"
            ) from error
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        self._link.readers.add(self)
        return self.url

    async def connect(self, within: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One connection. Raises PortClosed, LimitError, Unsupported."""
        tunnel = await Tunnel.open(self._link, self._sandbox, self._port, within=within)
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=theirs, limit=CHUNK)
        self._given = writer
        near = await asyncio.open_unix_connection(sock=ours, limit=CHUNK)
        self._link.readers.add(self)
        self._spawn(self._carried(tunnel, reader, writer, *near))
        return reader, writer

    async def _carried(
        self,
        tunnel: Tunnel,
        theirs: asyncio.StreamReader,
        given: asyncio.StreamWriter,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            await carry(tunnel, reader, writer, theirs.set_exception)
        finally:
            if given.is_closing():  # else it is closed with the client
                self._link.readers.discard(self)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(self._forward(reader, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            tunnel = await Tunnel.open(self._link, self._sandbox, self._port)
        except BaseException as error:
            _shut(writer, reset=True)
            if isinstance(error, DsecError):
                return
            raise
        await carry(tunnel, reader, writer)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Listen no more and break off what is carried; repeatable."""
        self._link.readers.discard(self)
        if self._server is not None:
            self._server.close()
        if self._given is not None:
            self._given.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def forwarded(link: Link, sandbox: str, port: int, local: int) -> AsyncIterator[str]:
    """The URL of a port inside, good within the block."""
    carriers = Carriers(link, sandbox, port)
    try:
        yield await carriers.listen(local)
    finally:
        await carriers.close()


async def wait_port(link: Link, sandbox: str, port: int, path: str | None, timeout: float) -> None:
    """Return when somebody listens, and with `path` answers `GET path` with a status of 200 to 399.

    Raises PortClosed after `timeout` seconds.
    """
    loop, why = asyncio.get_running_loop(), "nothing listens"
    until = loop.time() + timeout
    while (left := until - loop.time()) > 0:
        try:
            if path is None:
                body = {"port": port, "within": min(WITHIN, left), "probe": True}
                await link.call(link.subject("port", "open", sandbox), body)
                return
            status = await _status(link, sandbox, port, path, min(WITHIN, left))
            if 200 <= status < 400:
                return
            why = f"GET {path} is answered with {status}" if status else "what listens does not speak HTTP"
        except PortClosed as error:
            why = error.message
        except (ConnectionError, TimeoutError, DsecError) as error:
            why = str(error) or "no answer"
            if isinstance(error, DsecError) and error.code != "no_such_connection":
                raise
        await asyncio.sleep(min(AGAIN, max(0.0, until - loop.time())))
    raise PortClosed(f"port {port} was not ready within {timeout:g} s: {why}", field="port")


async def _status(link: Link, sandbox: str, port: int, path: str, within: float) -> int:
    """The status of an HTTP answer; 0 when it is none."""
    carriers = Carriers(link, sandbox, port)
    try:
        async with asyncio.timeout(within + PROBE):
            reader, writer = await carriers.connect(within)
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode()
            )
            words = (await reader.readline()).split()
            writer.close()
    finally:
        await carriers.close()
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 0
