"""One platform in two halves for all tests of faults; each leaves it running and empty."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dsec.sdk import Client
from tests.faults import support
from tests.faults.support import Halves


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def halves(tmp_path_factory: pytest.TempPathFactory, base_file: Path) -> AsyncIterator[Halves]:
    async with support.halves(tmp_path_factory.mktemp("halves"), base_file) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def connected(halves: Halves) -> AsyncIterator[Client]:
    """A client; afterwards no sandbox is left, and no trace of one."""
    async with halves.client() as client:
        yield client
    await support.empty(halves)
    assert halves.leftovers() == []
