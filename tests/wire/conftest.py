from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dsec.bus.nats.broker import Broker
from tests.wire.support import Stack, running_broker_with_iam


@pytest_asyncio.fixture(scope="session")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker that lets everybody in, shared: a test uses subjects of its own."""
    async with Broker.running(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest_asyncio.fixture(scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A broker with iam, shared."""
    async with running_broker_with_iam(tmp_path_factory.mktemp("stack"), nodes=["n-a", "n-b"]) as stack:
        yield stack
