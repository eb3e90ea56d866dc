"""A broker and a protocol peer, for programs that use the twin in threads and processes of their own."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from dsec.bus.nats.broker import Broker
from tests.sdk import support


@dataclass(frozen=True)
class Place:
    """Where a program finds the platform, and what the peer has seen of it."""

    url: str
    credentials: Path
    peer: support.Peer


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    async with Broker.running(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def place(broker: Broker, tmp_path: Path) -> AsyncIterator[Place]:
    (tmp_path / "root").mkdir()
    support.tenant().save(tmp_path / "tenant.json")
    async with support.peer(broker, tmp_path / "root") as peer:
        yield Place(broker.url, tmp_path / "tenant.json", peer)
