"""A real broker, with and without iam, for tests of anything that talks over the bus."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dsec.bus.errors import DsecError
from dsec.bus.home import Home
from dsec.bus.host import Context
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam import Iam, Prepared


@dataclass(frozen=True, slots=True)
class Stack:
    """A broker whose door iam keeps."""

    broker: Broker
    home: Home
    prepared: Prepared

    @property
    def url(self) -> str:
        return self.broker.url

    def credentials(self, owner: str) -> Credentials:
        """Of a role (`core`), a node (`n-a`) or a principal (`u-admin`)."""
        return self.prepared.credentials(owner)

    @contextlib.asynccontextmanager
    async def wire(self, owner: str) -> AsyncIterator[Wire]:
        """A connection of that owner."""
        async with Wire.connect(self.url, self.credentials(owner)) as wire:
            yield wire

    def principal(self, project: str, name: str) -> Credentials:
        """A new principal."""
        return Iam.create_principal(self.home, project, name)


@contextlib.asynccontextmanager
async def running_broker_with_iam(path: Path, nodes: Iterable[str] = ("n-a",)) -> AsyncIterator[Stack]:
    """Broker and iam, with credentials of all roles, `nodes` and `u-admin` of `p-default`."""
    home = Home(path)
    prepared = Iam.prepare(home, nodes=nodes)
    async with (
        Broker.running(home.broker, auth=prepared.auth) as broker,
        Wire.connect(broker.url, prepared.credentials("iam"), "iam") as wire,
        Iam.running(wire, Context(home.part("iam"))),
    ):
        yield Stack(broker, home, prepared)


async def until(condition: Callable[[], bool], *, within: float) -> None:
    """Raises TimeoutError when `condition` does not come true in time."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - most of what tests wait for tells its state only
            await asyncio.sleep(0.02)


async def answered_again(wire: Wire, subject: str, *, within: float) -> float:
    """Seconds until a request on `subject` is answered. Raises TimeoutError."""
    started = time.monotonic()
    async with asyncio.timeout(within):
        while True:
            try:
                await wire.request(subject, b"{}", timeout=1)
            except DsecError:
                await asyncio.sleep(0.05)
            else:
                return time.monotonic() - started
