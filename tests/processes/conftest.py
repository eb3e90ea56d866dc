"""A broker with iam for the tests of plugins in processes of their own."""

from collections.abc import AsyncIterator

import pytest

from tests.wire.support import Stack, running_broker_with_iam


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_broker_with_iam(tmp_path_factory.mktemp("stack")) as running:
        yield running
