"""A real broker, with and without iam, for tests of anything that talks over the bus."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from dsec.bus.broker import Broker
from dsec.bus.credentials import Credentials
from dsec.bus.home import Home
from dsec.bus.host import Context
from dsec.bus.wire import Wire
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
