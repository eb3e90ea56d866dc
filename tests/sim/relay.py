"""A line to the broker that can be cut: bytes stay where they are, and no end is told, until it is mended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self
from urllib.parse import urlsplit


class Relay:
    """Made by `running`."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._whole = asyncio.Event()
        self._whole.set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.url = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, broker: str) -> AsyncIterator[Self]:
        at = urlsplit(broker)
        self = cls(str(at.hostname), int(at.port or 0))
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        for pump in (self._pump(reader, back), self._pump(there, writer)):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(1 << 16):
                    await self._whole.wait()
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()
