"""The plugin host: finds plugins and drivers by entry point and runs each with an identity of its own.

What starts ends in the same block, in reverse and with a deadline for each stage, so that one part that
hangs cannot keep the others from ending cleanly.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from dsec.bus.driver import Driver, Images
from dsec.bus.errors import DsecError, InfraError, MissingTool
from dsec.bus.home import Home
from dsec.bus.ids import tail
from dsec.bus.membership import here, member
from dsec.bus.metrics.parts import seen
from dsec.bus.micro import Service
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Bus

log = logging.getLogger(__name__)
ValueT = TypeVar("ValueT")

PLUGINS: Final = "dsec.plugins"
DRIVERS: Final = "dsec.drivers"
IMAGES: Final = "dsec.images"
CONTROL_PLANE: Final = ("core", "scheduler", "journal")
LINGER: Final = 0.004
"""Seconds between two writes of core and scheduler when they are busy: they have messages in every create,
and a write, with what it wakes in the broker, costs as much as the messages in it."""
_BUSY: Final = {Role.CORE, Role.SCHEDULER}
STOP_WITHIN: Final = 10.0
"""Seconds that one stage may take to end."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the host hands to a plugin; `home` is its own directory, a node's parts have `node` set.

    `drain`: when its block ends, a node destroys its sandboxes; otherwise they run on for its successor.
    """

    home: Path
    node: str = ""
    drivers: Mapping[str, Driver] | None = None
    images: Images | None = None
    drain: bool = False


class Plugin(Protocol):
    """A part of the platform: serves while its block runs, and has left nothing running when it ends."""

    @classmethod
    def running(cls, bus: Bus, context: Context) -> AbstractAsyncContextManager[None]: ...


def load(group: str, name: str) -> Any:
    """The class behind an entry point, or behind `package.module:Class`.

    Raises MissingTool telling what is installed instead.
    """
    if ":" in name:
        return _imported(name)
    found = {entry.name: entry for entry in entry_points(group=group)}
    if name not in found:
        raise MissingTool(f"no {name!r} among the entry points {group}: {', '.join(found) or 'none'}")
    try:
        return found[name].load()
    except ImportError as error:
        raise MissingTool.during(f"{group}:{name} cannot be loaded", error) from error


def _imported(target: str) -> Any:
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise MissingTool.during(f"{target} cannot be loaded", error) from error


@contextlib.asynccontextmanager
async def drivers_of(
    home: Home, node: str, *, without: Collection[str] = ()
) -> AsyncIterator[dict[str, Driver]]:
    """Every installed driver that this machine can run, but for those that run in processes of their own.

    Raises MissingTool when there is none, unless some are left out.
    """
    usable: dict[str, Driver] = {}
    refused: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        for entry in entry_points(group=DRIVERS):
            if entry.name in without:
                continue
            try:
                driver: Driver = load(DRIVERS, entry.name)(home.driver(node, entry.name))
                stack.push_async_callback(driver.close)
                await driver.check()
            except DsecError as error:
                log.warning("driver %s is left out: %s", entry.name, error)
                refused.append(f"{entry.name}: {error.message}")
            else:
                usable[entry.name] = driver
        if not usable and not without:
            why = "; ".join(refused) or "none is installed"
            raise MissingTool(f"no backend works on this machine ({why})")
        yield usable


@contextlib.asynccontextmanager
async def images_of(home: Home, node: str) -> AsyncIterator[Images]:
    """The node's image store, the first of the entry points. Raises MissingTool when it cannot work here."""
    names = sorted(entry.name for entry in entry_points(group=IMAGES))
    images: Images = load(IMAGES, names[0] if names else "erofs")(home.images(node))
    try:
        await images.check()
        yield images
    finally:
        await images.close()


@contextlib.asynccontextmanager
async def plugin(
    name: str,
    url: str,
    credentials: Credentials,
    context: Context,
    *,
    stop_within: float = STOP_WITHIN,
    service: Service | None = None,
    concurrency: int | None = None,
) -> AsyncIterator[Wire]:
    """Run one plugin over a connection of its own, which is yielded; it is announced as `service`.

    `name`: an entry point or `package.module:Class`. `concurrency`: requests that it works on at once.
    """
    kind: type[Plugin] = load(PLUGINS, name)
    context.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with (
        Wire.connect(url, credentials, name, linger=LINGER if credentials.role in _BUSY else 0.0) as wire,
        ending(_running(kind, wire, context, concurrency), name, within=stop_within),
        member(wire, service or service_of(credentials)),
    ):
        with seen(credentials.role.value, credentials.node, wire):
            log.info("%s runs", name)
            yield wire


def _running(
    kind: type[Plugin], wire: Wire, context: Context, concurrency: int | None
) -> AbstractAsyncContextManager[None]:
    wire.workload.cap(concurrency)
    return kind.running(wire, context)


def service_of(credentials: Credentials) -> Service:
    """How a part is seen: by its kind, and by its node where it is bound to one."""
    bound = {"node": credentials.node} if credentials.node else {}
    who = credentials.owner if credentials.node else tail()
    return Service(credentials.role.value, who, metadata=here(**bound))


@contextlib.asynccontextmanager
async def ending(
    block: AbstractAsyncContextManager[ValueT], name: str, *, within: float
) -> AsyncIterator[ValueT]:
    """`block` with `within` seconds for its end; then it is cancelled. Raises InfraError in that case."""
    deadline = asyncio.timeout(None)
    try:
        async with deadline, block as value:
            try:
                yield value
            finally:
                deadline.reschedule(asyncio.get_running_loop().time() + within)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise InfraError(f"{name} did not end within {within:g} s and was cancelled") from error
