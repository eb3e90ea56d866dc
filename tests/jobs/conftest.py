"""One control plane with simulated nodes for the tests of batches and jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dsec.sdk import Client
from tests.control.cluster import Cluster
from tests.jobs.support import client_of


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with Cluster.running(tmp_path_factory.mktemp("jobs")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with client_of(cluster) as connected:
        yield connected
