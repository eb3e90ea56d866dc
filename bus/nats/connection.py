"""nats-py's client with the parts replaced that lose messages, hang, or cost too much.

Kept: protocol parsing, authentication, reconnecting, JetStream. What differs from nats-py 2.16:

- A message goes straight to a plain callback; nats-py passes it through a queue and a task per subscription.
- Messages are read by splitting lines (`protocol`), a fifth of the cost of nats-py's expressions.
- Commands are collected for two turns of the event loop and written at once, without a future each: what a
  message sets going goes out in one write. A publisher waits while more than `PENDING` bytes are unsent, so
  that no large buffer sits ahead of replies.
- What is unsent when the connection breaks is dropped, never delivered later; who waits for a PONG is told.
- An error line of the broker does not close the client for good; the broker closes what it will not serve.
- A cancelled round trip does not end the read loop (nats-py sets a result on the cancelled future and stops),
  and its cancellation is not lost when the PONG comes with it (as by `wait_for` before Python 3.12).
- A write to a socket that is closed already is a broken connection; uvloop's RuntimeError would end nats-py's
  reconnecting for good.
- Sockets of failed attempts and all tasks have ended when `close` returns; an attempt to reconnect whose
  cancellation nats-py has lost comes to nothing.
- A server that does not speak TLS is refused where the URL says `tls`, and one that does where it does not:
  nats-py would go on in the clear, or with the system's trust anchors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from nats.aio.client import Client, Srv
from nats.aio.transport import TcpTransport
from nats.errors import ConnectionClosedError, Error, FlushTimeoutError
from nats.protocol.parser import PERMISSIONS_ERR, STALE_CONNECTION

from dsec.bus.nats.headers import header_block
from dsec.bus.nats.protocol import DirectParser

log = logging.getLogger(__name__)

PENDING = 256 * 1024
"""Unsent bytes at which publishers wait (measured: nats-py's 2 MiB sit ahead of every reply)."""
BURST = 8
"""Writes that a service which was idle may make at once before it waits `linger` for each."""
CLOSE_TIMEOUT = 2.0
"""Seconds that closing waits for a broker that does not read."""

PONG = 10.0
"""Seconds that a broker has to answer a PING."""

Direct = Callable[[str, str, bytes, bytes | None], None]
"""Called with subject, reply subject, payload and the raw header block."""


class Mismatch(Error):
    """The server and its URL do not agree about TLS."""


class Socket(TcpTransport):
    """nats-py's transport, whose writes raise ConnectionResetError when it is closed, on every event loop.

    Under TLS it keeps the plain stream, whose end closes the socket (Python 3.11.7), and tells asyncio, which
    otherwise warns as the connection ends.
    """

    _plain: asyncio.StreamWriter | None = None

    def __init__(self, made: TcpTransport) -> None:
        self._bare_io_reader = self._io_reader = made._io_reader
        self._bare_io_writer = self._io_writer = made._io_writer

    async def connect_tls(self, *args: Any, **options: Any) -> None:
        self._plain = self._opened()
        await super().connect_tls(*args, **options)
        self._opened()._protocol._over_ssl = True  # type: ignore[attr-defined]  # there is no public way

    def abort(self) -> None:
        """At once, also in the middle of a handshake."""
        for stream in (self._io_writer, self._plain):
            if stream is not None:
                stream.transport.abort()

    def write(self, payload: bytes) -> None:
        self._opened().write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self._opened().writelines(payload)

    def _opened(self) -> asyncio.StreamWriter:
        if self._io_writer is None or self._io_writer.transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        return self._io_writer


class Connection(Client):
    """One client connection; `dsec.bus.nats.wire.Wire` is its only user."""

    def __init__(self, on_violation: Callable[[str], None]) -> None:
        super().__init__()
        self._ps = DirectParser(self)
        self._direct: dict[int, Direct] = {}
        self.seed: Callable[[], Awaitable[str]] | None = None
        """Asked before each attempt: the nkey seed may have been rotated."""
        self._on_violation = on_violation
        self._write_scheduled = False
        self._unsent = 0
        self._due = 0.0
        self._ended = False
        self.linger = 0.0
        """Seconds a write, on average: busy services write less, idle ones at once (GCRA, ITU-T I.371)."""

    # --- publishing

    async def send(self, subject: str, reply: str, payload: bytes) -> None:
        """Publish without headers; the caller has checked subject, size and state. Raises OSError."""
        head = f"PUB {subject} {reply} {len(payload)}\r\n".encode()
        self._collect(head + payload + b"\r\n")
        if self._unsent + self._pending_data_size > PENDING:
            await self._room()

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """As nats-py's, collected like everything else: a write of its own would be its main cost."""
        if not self.is_connected:
            raise ConnectionClosedError
        if not headers:
            await self.send(subject, reply, payload)
            return
        block = header_block(headers)
        size = len(block)
        head = f"HPUB {subject} {reply} {size} {size + len(payload)}\r\n".encode()
        self._collect(b"".join((head, block, payload, b"\r\n")))
        if self._unsent + self._pending_data_size > PENDING:
            await self._room()

    def _collect(self, command: bytes) -> None:
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._write_scheduled:
            self._write_scheduled = True
            loop = asyncio.get_running_loop()
            wait = self._due - BURST * self.linger - loop.time() if self.linger else 0.0
            if wait > 0:
                loop.call_later(wait, self._write_out)
            else:
                loop.call_soon(loop.call_soon, self._write_out)

    def _write_out(self) -> None:
        self._write_scheduled = False
        if self.linger:
            self._due = max(self._due, asyncio.get_running_loop().time()) + self.linger
        commands, self._pending, self._pending_data_size = self._pending, [], 0
        stream = self._stream()
        if commands and self.is_connected and stream and not stream.transport.is_closing():
            stream.writelines(commands)
            self._unsent = stream.transport.get_write_buffer_size()

    def _stream(self) -> asyncio.StreamWriter | None:
        """asyncio's stream under nats-py's transport; there is no public way to it."""
        return self._transport._io_writer if isinstance(self._transport, TcpTransport) else None

    async def _room(self) -> None:
        """Wait until the socket takes bytes again. Raises ConnectionResetError when it never will."""
        self._write_out()
        if stream := self._stream():
            await stream.drain()
            self._unsent = stream.transport.get_write_buffer_size()

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:  # noqa: FBT001, FBT002 - as nats-py has it
        self._collect(cmd)

    async def _flush_pending(self, force_flush: bool = False) -> None:  # noqa: FBT001, FBT002 - as nats-py has it
        self._write_out()

    async def _flusher(self) -> None:
        """Nothing is left for nats-py's flusher to do; its `flush` wants the task to live."""
        await asyncio.Event().wait()

    # --- receiving

    async def subscribe_direct(self, subject: str, queue: str, callback: Direct) -> int:
        """Messages go to a plain callback; the number is for `unsubscribe_direct`."""
        sid = self._sid + 1  # the one that `subscribe` takes next, before it first gives up control
        self._direct[sid] = callback
        try:
            await self.subscribe(subject, queue=queue)
        except Error:
            del self._direct[sid]
            raise
        return sid

    async def unsubscribe_direct(self, sid: int) -> None:
        """No callback runs afterwards; repeatable, whatever the state of the connection."""
        self._direct.pop(sid, None)
        subscription = self._subs.get(sid)
        if subscription is not None:
            await subscription.unsubscribe()

    async def stop_direct(self, sid: int) -> None:
        """The broker sends nothing more; what it had sent before has been given to the callback on return."""
        self._collect(f"UNSUB {sid}\r\n".encode())
        await self.roundtrip()

    async def roundtrip(self) -> None:
        """All that was sent has been taken and judged by the broker. Raises nats.errors.Error, OSError."""
        if self.is_closed:
            raise ConnectionClosedError
        pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._write_out()  # a PING is written at once, ahead of what is collected
        await self._send_ping(pong)
        try:
            async with asyncio.timeout(PONG):
                await pong
        except TimeoutError:
            raise FlushTimeoutError from None

    def deliver(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> bool:
        """Give a message to its direct callback; False: it has none."""
        callback = self._direct.get(sid)
        if callback is None:
            return False
        try:
            callback(subject.decode(), reply.decode(), data, headers)
        except Exception:
            log.exception("a subscriber of %s failed", subject.decode())
        return True

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pings_outstanding = 0
            return
        await super()._process_pong()

    async def _process_err(self, err_msg: str) -> None:
        if PERMISSIONS_ERR in err_msg:
            self._on_violation(err_msg)
        elif STALE_CONNECTION in err_msg:
            await super()._process_err(err_msg)
        else:
            log.warning("the broker says %s", err_msg)

    # --- connecting

    async def _process_op_err(self, e: Exception) -> None:
        """Not only close: closing would first wait for a frozen broker to read what is unsent."""
        if stream := self._stream():
            stream.transport.abort()
        await super()._process_op_err(e)

    def drop_unsent(self) -> None:
        """Forget what was not written: delivered after a reconnect, it would be out of date. Whoever waits
        for a PONG is told at once; nats-py would have it wait for its timeout.
        """
        self._pending, self._pending_data_size, self._unsent = [], 0, 0
        pongs, self._pongs = self._pongs, []
        for pong in pongs:
            if not pong.done():
                pong.set_exception(ConnectionResetError("the connection broke"))
                pong.exception()  # seen: nobody awaits those of the regular pings

    async def _connect_to_server(self, s: Srv) -> None:
        if stream := self._stream():
            stream.close()  # of an attempt that the broker refused
        self.drop_unsent()
        if self.seed is not None:
            self._nkeys_seed_str = await self.seed()
            self._setup_nkeys_seed_connect()
        await super()._connect_to_server(s)
        if type(self._transport) is TcpTransport:
            self._transport = Socket(self._transport)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002 - as nats-py has it
        server, required = self._current_server, bool(info.get("tls_required"))
        if initial_connection and server is not None and required != (server.uri.scheme == "tls"):
            speaks = "speaks only TLS: say tls:// and its CA" if required else "does not speak TLS"
            raise Mismatch(f"nats: the broker at {server.uri.netloc} {speaks}")
        await super()._process_info(info, initial_connection)

    async def _process_connect_init(self) -> None:
        """nats-py takes any first line but an error for the broker's consent; a PING may come before it."""
        try:
            await super()._process_connect_init()
        except ssl.SSLError:
            if isinstance(self._transport, Socket):
                self._transport.abort()
            self._transport = None  # its stream is never told that it was closed
            raise
        if stream := self._stream():
            stream.transport.set_write_buffer_limits(high=PENDING)
        if self._ended or not self.is_connected:
            for task in self._tasks():
                task.cancel()
            if self._ended:
                self._status = Client.CLOSED
                raise asyncio.CancelledError
            raise Error("nats: authorization violation: the broker has not decided yet")

    def _tasks(self) -> list[asyncio.Task[Any]]:
        tasks = (self._reading_task, self._ping_interval_task, self._flusher_task)
        return [task for task in tasks if task is not None]

    async def close(self) -> None:
        self._ended = True
        tasks = self._tasks() + ([self._reconnection_task] if self._reconnection_task is not None else [])
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await super().close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if stream := self._stream():
            stream.close()
