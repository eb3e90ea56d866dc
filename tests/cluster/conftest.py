"""A cluster of three servers with iam and streams of three replicas, shared by the tests of a module."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from dsec.bus import registry
from dsec.bus.home import Home
from dsec.bus.host import Context
from dsec.bus.nats import cluster
from dsec.bus.nats.directget import patiently
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam import Iam, Prepared
from tests.cluster import trio as trios
from tests.cluster.trio import Trio

EXEC_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Site:
    """Servers, iam's connection and the credentials of everybody else."""

    home: Home
    trio: Trio
    prepared: Prepared
    iam: Wire
    told: cluster.Survey

    def wire(self, owner: str, url: str = "") -> AbstractAsyncContextManager[Wire]:
        return Wire.connect(url or self.trio.url, self.prepared.credentials(owner))


@contextlib.asynccontextmanager
async def site_in(path: Path) -> AsyncIterator[Site]:
    """Three servers and iam, whose bucket has its replicas, as `dsec up` sees to it; no other streams."""
    home = Home(path)
    prepared = Iam.prepare(home, nodes=["n-a"])
    async with (
        trios.running(path / "nats", prepared.auth) as trio,
        Wire.connect(trio.url, prepared.credentials("iam"), "iam", timeout=20) as iam,
        Iam.running(iam, Context(home.part("iam"))),
    ):
        told = await patiently(lambda: cluster.survey(iam, listed=3))
        await patiently(lambda: registry.ensure_identities(iam.jetstream, replicas=told.replicas))
        yield Site(home, trio, prepared, iam, told)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with site_in(tmp_path_factory.mktemp("site")) as site, site.wire("core") as core:
        await patiently(lambda: registry.ensure(core.jetstream, EXEC_BYTES, replicas=site.told.replicas))
        yield site
