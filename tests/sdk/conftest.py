"""A real broker, a protocol peer and a client for the tests of the client's side."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dsec.bus.nats.broker import Broker
from dsec.sdk import Client, Sandbox
from tests.sdk import support


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    async with Broker.running(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def peer(broker: Broker, tmp_path: Path) -> AsyncIterator[support.Peer]:
    root = tmp_path / "root"
    root.mkdir()
    async with support.peer(broker, root) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="session")
async def client(broker: Broker, peer: support.Peer) -> AsyncIterator[Client]:
    async with support.client_of(broker, patience=10.0) as connected:
        yield connected


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(client: Client) -> Sandbox:
    return await client.create(image="base")
