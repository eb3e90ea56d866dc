"""Fixtures of the edge's tests: a broker with streams for its parts, a whole site for the edge itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.bus.nats.wire import Wire
from dsec.plugins.container import ContainerDriver
from dsec.plugins.images import ErofsImages
from dsec.plugins.images.base import base_image
from dsec.sdk import Client, Sandbox
from tests.edge import support
from tests.edge.support import NODE, Site
from tests.wire.support import Stack


@pytest.fixture(scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with support.running_streams(tmp_path_factory.mktemp("streams")) as running:
        yield running


@pytest.fixture
async def wire(stack: Stack) -> AsyncIterator[Wire]:
    """The node's connection, with its rights."""
    async with stack.wire(NODE) as wire:
        yield wire


@pytest.fixture(scope="session")
async def site(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    path = tmp_path_factory.mktemp("site")
    path.chmod(0o711)
    images = ErofsImages(path / "images")
    await images.import_file("base", await base_image(), "base")
    driver = ContainerDriver(path / "container")
    await driver.check()
    async with support.control_plane(stack):
        yield Site(stack, images, driver, path / "edge")
    await images.close()
    await driver.close()


@pytest.fixture
async def client(site: Site) -> AsyncIterator[Client]:
    """A client beside a running edge, which is drained at the end."""
    async with site.edge(drain=True), site.client() as client:
        yield client


@pytest.fixture
async def sandbox(client: Client) -> Sandbox:
    return await client.create(backend="container", image="base")


@pytest.fixture
def tmpfs() -> Path:
    """A directory on the machine's tmpfs."""
    return Path("/dev/shm")
