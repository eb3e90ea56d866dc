"""A control plane on a real broker, for tests of watcher, table and registry."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.control.cluster import Cluster


@pytest.fixture(scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Shared: a test uses nodes of its own."""
    async with Cluster.running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
