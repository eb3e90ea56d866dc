from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dsec.bus import registry
from tests.wire.support import Stack, running_broker_with_iam


@pytest_asyncio.fixture(scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A broker with iam and the platform's streams, shared."""
    async with running_broker_with_iam(tmp_path_factory.mktemp("stack"), nodes=["n-a", "n-b"]) as stack:
        async with stack.wire("core") as core:
            await registry.ensure(core.jetstream, exec_bytes=64 * 1024 * 1024)
        yield stack
