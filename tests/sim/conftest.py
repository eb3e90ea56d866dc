"""One control plane for the tests of simulated nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dsec.sdk import Client
from tests.sim.support import Plane, plane


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def control(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Plane]:
    async with plane(tmp_path_factory.mktemp("control")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def client(control: Plane) -> AsyncIterator[Client]:
    async with control.client() as connected:
        yield connected
