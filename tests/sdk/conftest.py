"""A real broker, a protocol peer and a client for the tests of the client's side."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from dsec.bus.nats.broker import Broker
from dsec.sdk import Client, Sandbox, sync
from tests.sdk import support
from tests.sdk.face import Face


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


@pytest.fixture(params=["async", "sync"])
def twin(request: pytest.FixtureRequest) -> str:
    """Which of the two the test is run for; `asynchronous` marks those that look inside one of them."""
    return str(request.param)


asynchronous = pytest.mark.parametrize("twin", ["async"], indirect=True)


@pytest_asyncio.fixture(loop_scope="session")
async def client(broker: Broker, peer: support.Peer, twin: str) -> AsyncIterator[Client]:
    if twin == "async":
        async with support.client_of(broker, patience=10.0) as connected:
            yield connected
    else:
        async with Face(sync.Client(broker.url, support.tenant(), patience=10.0)) as faced:
            yield cast("Client", faced)


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(client: Client) -> Sandbox:
    return await client.create(image="base")
