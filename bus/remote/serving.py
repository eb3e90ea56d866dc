"""A driver served over the bus: the side of its own process.

    async with serve_driver(bus, "n-a", driver, home.path / "container.sock") as served:
        …
        await served.leave(10)    # the edge has new sandboxes made elsewhere from here on

Any `Driver` will do. Requests are worked on in tasks, under the connection's cap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from dsec.bus import subjects
from dsec.bus.driver import CanConnect, CanPause, CanReclaim, CountsOom, Driver
from dsec.bus.errors import InfraError, Unsupported
from dsec.bus.handlers import decode, ok, serving_internal
from dsec.bus.ids import tail
from dsec.bus.messages import Message
from dsec.bus.remote.handover import Desk
from dsec.bus.remote.messages import About, ConnectTo, CreateOrder, DeathBody, DriverUp, HandleBody, Passed
from dsec.bus.transport import Bus, Received
from dsec.bus.workload import workload_of

log = logging.getLogger(__name__)

EVERY: Final = 1.0
"""Seconds between two `driver.up`."""
LINGER: Final = 0.5
"""Seconds in which the edge opens the channels of what was created last."""
CONCURRENCY: Final = 64


class Served:
    """One driver that answers; made by `serve_driver` only."""

    def __init__(self, bus: Bus, node: str, driver: Driver, desk: Desk) -> None:
        self._bus = bus
        self._driver = driver
        self._desk = desk
        self._instance = tail()
        self._leaving = False
        name = driver.info().name
        self._up, self._death = (subjects.driver(verb, node, name) for verb in subjects.DRIVER_NEWS)
        self._create = subjects.driver("create", node, name)
        self.handlers: dict[str, Callable[[Received], Awaitable[bytes]]] = {
            "info": self.info,
            "create": self.create,
            "channel": self.channel,
            "destroy": self.destroy,
            "inspect": self.inspect,
            "recover": self.recover,
            "pause": self.pause,
            "resume": self.resume,
            "reclaim": self.reclaim,
            "oom_kills": self.oom_kills,
            "connect": self.connect,
        }

    # --- news

    def _news(self) -> DriverUp:
        return DriverUp.of(self._driver, self._instance, leaving=self._leaving)

    async def leave(self, within: float) -> None:
        """Have the edge give its creates elsewhere, and finish those in hand: the edge still opens their
        channels."""
        self._leaving = True
        await self._tell(self._up, self._news())
        await workload_of(self._bus).drain(within, self._create)
        await asyncio.sleep(LINGER)

    async def beat(self) -> None:
        """Tell that it lives, for as long as it does."""
        while True:
            await self._tell(self._up, self._news())
            await asyncio.sleep(EVERY)

    async def mourn(self) -> None:
        """Tell deaths. One that the edge misses is found by it when the channel closes."""
        async for death in self._driver.watch():
            await self._tell(self._death, DeathBody.of(death))

    async def _tell(self, subject: str, body: Message) -> None:
        with contextlib.suppress(InfraError):
            await self._bus.publish(subject, body.model_dump_json().encode())

    # --- requests

    async def info(self, _: Received) -> bytes:
        return ok(self._news())

    async def create(self, message: Received) -> bytes:
        asked = decode(CreateOrder, message.data)
        return ok(HandleBody.of(await self._driver.create(asked.order(), asked.rootfs())))

    async def channel(self, message: Received) -> bytes:
        channel = await self._driver.channel(decode(About, message.data).sandbox)
        return ok(
            Passed(
                path=str(self._desk.path),
                ticket=self._desk.offer(channel.socket),
                descriptors=channel.descriptors,
                cgroup=None if channel.cgroup is None else str(channel.cgroup),
            )
        )

    async def destroy(self, message: Received) -> bytes:
        await self._driver.destroy(decode(About, message.data).sandbox)
        return ok()

    async def inspect(self, message: Received) -> bytes:
        death = await self._driver.inspect(decode(About, message.data).sandbox)
        return ok(None if death is None else DeathBody.of(death))

    async def recover(self, message: Received) -> bytes:
        """Also tells a death that happened while nobody listened."""
        handle = decode(HandleBody, message.data).handle()
        await self._driver.recover(handle)
        death = await self._driver.inspect(handle.sandbox)
        return ok(None if death is None else DeathBody.of(death))

    async def pause(self, message: Received) -> bytes:
        await self._pausing().pause(decode(About, message.data).sandbox)
        return ok()

    async def resume(self, message: Received) -> bytes:
        await self._pausing().resume(decode(About, message.data).sandbox)
        return ok()

    async def reclaim(self, message: Received) -> bytes:
        if not isinstance(self._driver, CanReclaim):
            raise Unsupported("this driver takes no memory from a paused sandbox")
        await self._driver.reclaim(decode(About, message.data).sandbox)
        return ok()

    async def oom_kills(self, message: Received) -> bytes:
        if not isinstance(self._driver, CountsOom):
            raise Unsupported("this driver does not count what was killed for memory")
        return ok({"kills": await self._driver.oom_kills(decode(About, message.data).sandbox)})

    async def connect(self, message: Received) -> bytes:
        if not isinstance(self._driver, CanConnect):
            raise Unsupported("this driver reaches no ports")
        asked = decode(ConnectTo, message.data)
        ticket = self._desk.offer(await self._driver.connect(asked.sandbox, asked.port))
        return ok(Passed(path=str(self._desk.path), ticket=ticket, descriptors=False, cgroup=None))

    def _pausing(self) -> CanPause:
        if not isinstance(self._driver, CanPause):
            raise Unsupported("this driver cannot pause")
        return self._driver


@contextlib.asynccontextmanager
async def serve_driver(bus: Bus, node: str, driver: Driver, door: Path) -> AsyncIterator[Served]:
    """Answer the node's edge while the block runs; channels are handed over at the unix socket `door`."""
    async with contextlib.AsyncExitStack() as stack:
        desk = await stack.enter_async_context(Desk.running(door))
        served, name = Served(bus, node, driver, desk), driver.info().name
        for verb, handler in served.handlers.items():
            subject = subjects.driver(verb, node, name)
            await stack.enter_async_context(
                serving_internal(bus, subject, handler, queue="driver", concurrency=CONCURRENCY)
            )
        news = [asyncio.create_task(work) for work in (served.mourn(), served.beat())]
        for task in news:
            task.add_done_callback(_told)
        stack.push_async_callback(_ended, news)
        yield served


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the driver tells no more news", exc_info=error)


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
