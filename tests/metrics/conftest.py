"""One platform of simulated nodes for the tests that scrape it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dsec.sdk import Client
from tests.metrics.support import Observed, observed


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Observed]:
    async with observed(tmp_path_factory.mktemp("observed")) as both:
        yield both


@pytest_asyncio.fixture(loop_scope="session")
async def client(running: Observed) -> AsyncIterator[Client]:
    async with running.control.client() as connected:
        yield connected
