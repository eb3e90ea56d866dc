"""A whole platform in this process around one real edge with real containers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from dsec.bus.core.service import Core
from dsec.bus.errors import DsecError
from dsec.bus.frames import Fold, Kind, unpack
from dsec.bus.host import Context
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.directget import DirectGet, Stored
from dsec.bus.nats.wire import Wire
from dsec.bus.registry import ensure
from dsec.plugins.container import ContainerDriver
from dsec.plugins.edge import Edge
from dsec.plugins.images import ErofsImages
from dsec.plugins.journal import Journal
from dsec.plugins.scheduler import Scheduler
from dsec.sdk import Client
from dsec.sdk.testing import traces as leftovers
from tests.wire.support import Stack, running_broker_with_iam

NODE = "n-edge"
EXEC_BYTES = 1 << 30


@contextlib.asynccontextmanager
async def running_streams(path: Path) -> AsyncIterator[Stack]:
    """A broker with iam and the platform's streams."""
    async with running_broker_with_iam(path, [NODE]) as stack:
        async with stack.wire("core") as core:
            await ensure(core.jetstream, EXEC_BYTES)
        yield stack


@contextlib.asynccontextmanager
async def control_plane(stack: Stack) -> AsyncIterator[None]:
    """Core, scheduler and journal."""
    async with contextlib.AsyncExitStack() as parts:
        for name, part in (("scheduler", Scheduler), ("core", Core), ("journal", Journal)):
            wire = await parts.enter_async_context(stack.wire(name))
            await parts.enter_async_context(part.running(wire, Context(stack.home.part(name))))
        yield


@dataclass(slots=True)
class Site:
    """One edge with its images and driver; `edge` starts it, as often as a test likes."""

    stack: Stack
    images: ErofsImages
    driver: ContainerDriver
    home: Path

    @contextlib.asynccontextmanager
    async def edge(self, *, drain: bool = False) -> AsyncIterator[Wire]:
        context = Context(self.home, NODE, {"container": self.driver}, self.images, drain=drain)
        async with self.stack.wire(NODE) as wire, Edge.running(wire, context):
            yield wire

    def client(self, credentials: Credentials | None = None) -> Client:
        """Of `u-admin`, or of somebody else whose credentials are saved."""
        owner = "u-admin" if credentials is None else credentials.principal
        return Client(self.stack.url, self.stack.home.credentials / f"{owner}.json")


async def stored(stack: Stack, stream: str, subject: str) -> list[Stored]:
    """All records of a subject; wildcards are allowed."""
    async with stack.wire("operator") as wire, DirectGet.running(wire) as reader:
        batch = await reader.batch(stream, subject, 1, count=100_000, max_bytes=512 << 20)
    return batch.messages


def folded(records: list[Stored]) -> tuple[bytes, bytes, Fold]:
    """Standard output, error and the fold of an exec's records, in the order of the stream."""
    fold, pieces = Fold(), []
    for record in records:
        pieces += fold.feed(unpack(record.data)) or []
    out = b"".join(data for kind, data in pieces if kind is Kind.STDOUT)
    err = b"".join(data for kind, data in pieces if kind is Kind.STDERR)
    return out, err, fold


def traces(site: Site, sandbox: str) -> list[str]:
    """What this machine still has of a sandbox: mounts, processes, cgroups, directories, spools."""
    return leftovers.of(site.home.parent, sandbox)


async def eventually(condition: Callable[[], Awaitable[bool]], *, within: float = 10.0) -> None:
    """Await `condition()` (a coroutine function) until it is true. Raises TimeoutError."""
    until = time.monotonic() + within
    while True:
        with contextlib.suppress(DsecError):
            if await condition():
                return
        if time.monotonic() > until:
            raise TimeoutError
        await asyncio.sleep(0.05)
