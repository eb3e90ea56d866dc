"""One plugin or driver in a process of its own: `dsec plugin run`.

It joins a running platform, is seen there as what its credentials say it is, and leaves in good order: asked
to drain (SIGTERM, or the operator's `plugin.drain.<kind>.<id>`) it takes nothing new, finishes what it has in
hand and ends. Killed, it is simply started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from dsec.bus import subjects
from dsec.bus.driver import Driver
from dsec.bus.errors import SpecError
from dsec.bus.handlers import ok, serving_internal
from dsec.bus.home import Home
from dsec.bus.host import DRIVERS, Context, drivers_of, images_of, load, plugin, service_of
from dsec.bus.ids import driver_on
from dsec.bus.membership import announce, here, member
from dsec.bus.metrics.parts import seen
from dsec.bus.micro import Service
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire
from dsec.bus.remote.serving import serve_driver
from dsec.bus.transport import Received

log = logging.getLogger(__name__)

FINISH_WITHIN: Final = 20.0
"""Seconds that a process which drains gives to the requests in its hands."""
Kind = Literal["driver", "plugin"]


@dataclass(frozen=True, slots=True)
class Options:
    """`target`: an entry point or `package.module:Class`. `concurrency`: requests worked on at once."""

    target: str
    kind: Kind
    url: str
    credentials: Credentials
    home: Home
    node: str = ""
    concurrency: int | None = None
    finish_within: float = FINISH_WITHIN
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        who = self.credentials
        if (self.kind == "driver") != (who.role is Role.DRIVER):
            raise SpecError(f"--kind {self.kind} does not go with credentials of a {who.role}", field="kind")
        if who.node and self.node not in {"", who.node}:
            raise SpecError(f"these credentials are for node {who.node}", field="node")
        if self.concurrency is not None and self.concurrency < 1:
            raise SpecError("--concurrency must be at least 1", field="concurrency")


async def _nothing(_: float) -> None:
    """A plugin has nobody to tell that it leaves: its subscriptions end."""


@dataclass(slots=True)
class Process:
    """What runs; `asked` is set when the operator wants it to drain."""

    wire: Wire
    service: Service
    leave: Callable[[float], Awaitable[None]] = _nothing
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def drain(self, within: float) -> int:
        """Take nothing new and finish what runs; how many requests were not finished in time."""
        await announce(self.wire, self.service, "draining")
        await self.leave(within)
        left = await self.wire.workload.drain(within)
        if left:
            log.warning("%s leaves %d requests unfinished", self.service.id, left)
        return left


@contextlib.asynccontextmanager
async def running(options: Options) -> AsyncIterator[Process]:
    """The plugin or driver while the block runs.

    Raises MissingTool, AlreadyRunning, SpecError, BrokerDown, Unauthenticated.
    """
    block = _driver(options) if options.kind == "driver" else _plugin(options)
    async with block as process:
        subject = subjects.plugin("drain", process.service.name, process.service.id)

        async def drain(_: Received) -> bytes:
            process.asked.set()
            return ok({"busy": process.wire.workload.busy})

        async with serving_internal(process.wire, subject, drain):
            yield process


@contextlib.asynccontextmanager
async def _plugin(options: Options) -> AsyncIterator[Process]:
    service = service_of(options.credentials)
    async with (
        _context(options) as context,
        plugin(
            options.target,
            options.url,
            options.credentials,
            context,
            service=service,
            concurrency=options.concurrency,
        ) as wire,
    ):
        yield Process(wire, service)


@contextlib.asynccontextmanager
async def _context(options: Options) -> AsyncIterator[Context]:
    """A node's agent gets the node's drivers and images; everything else a directory."""
    home, who = options.home, options.credentials
    if who.role is not Role.EDGE:
        yield Context(home.part(who.role.value))
        return
    with home.held(who.node):
        async with (
            drivers_of(home, who.node, without=options.without) as drivers,
            images_of(home, who.node) as images,
        ):
            yield Context(home.node(who.node), who.node, drivers, images)


@contextlib.asynccontextmanager
async def _driver(options: Options) -> AsyncIterator[Process]:
    home, who = options.home, options.credentials
    name = who.principal.removeprefix(driver_on(who.node, "x")[:-1])
    directory = home.driver(who.node, name)
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True, mode=0o700)
    with home.held(f"{who.node}.{name}"):
        driver: Driver = load(DRIVERS, options.target)(directory)
        if driver.info().name != name:
            raise SpecError(f"{options.target} is {driver.info().name}, the credentials are for {name}")
        try:
            await driver.check()
            async with _served(options, driver, directory.with_name(f"{name}.sock")) as process:
                yield process
        finally:
            await driver.close()


@contextlib.asynccontextmanager
async def _served(options: Options, driver: Driver, door: Path) -> AsyncIterator[Process]:
    who = options.credentials
    metadata = here(node=who.node, driver=driver.info().name)
    service = Service(who.role.value, who.owner, metadata=metadata)
    async with Wire.connect(options.url, who, who.owner) as wire:
        wire.workload.cap(options.concurrency)
        async with serve_driver(wire, who.node, driver, door) as served, member(wire, service):
            with seen(who.role.value, who.node, wire):
                yield Process(wire, service, served.leave)
