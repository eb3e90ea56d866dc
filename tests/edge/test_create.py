"""Creates whose stages fail one after the other: nothing is left, whatever failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.bus.driver import Channel, Handle, Order, Rootfs
from dsec.bus.errors import AgentCrippled, DiskFull, DsecError, InfraError
from dsec.bus.host import Context
from dsec.bus.messages import State
from dsec.bus.spec import Image
from dsec.plugins.container import ContainerDriver
from dsec.plugins.edge import Edge
from dsec.plugins.images import ErofsImages
from dsec.plugins.images.base import base_image
from dsec.sdk.testing.traces import paths
from tests.edge.support import NODE, Site, traces

pytestmark = pytest.mark.node


class FaultyDriver(ContainerDriver):
    """The real driver, which fails after its work at the stage that is named in `fails`."""

    fails = ""
    seen: list[str]

    async def create(self, order: Order, rootfs: Rootfs) -> Handle:
        self.seen.append(order.sandbox)
        handle = await super().create(order, rootfs)
        if self.fails == "create":
            raise InfraError("the driver failed")
        return handle

    async def channel(self, sandbox: str) -> Channel:
        channel = await super().channel(sandbox)
        if self.fails == "channel":
            channel.socket.close()
            raise AgentCrippled("no channel")
        if self.fails == "answer":
            channel.socket.shutdown(2)
        return channel


class FaultyImages(ErofsImages):
    """The real images, which fail once the root file system is there."""

    fails = False
    seen: list[str]

    async def compose(self, sandbox: str, image: Image) -> Rootfs:
        self.seen.append(sandbox)
        rootfs = await super().compose(sandbox, image)
        if self.fails:
            raise DiskFull("no room")
        return rootfs


@pytest.fixture
async def faulty(tmp_path: Path) -> AsyncIterator[tuple[FaultyDriver, FaultyImages]]:
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o711)
    driver, images = FaultyDriver(tmp_path / "container"), FaultyImages(tmp_path / "images")
    driver.seen, images.seen = [], []
    await driver.check()
    await images.import_file("base", await base_image(), "base")
    yield driver, images
    await images.close()
    await driver.close()


@pytest.mark.parametrize("stage", ["compose", "create", "channel", "answer"])
async def test_a_failed_stage_leaves_nothing_and_is_typed(
    site: Site, faulty: tuple[FaultyDriver, FaultyImages], stage: str
) -> None:
    driver, images = faulty
    driver.fails, images.fails = stage, stage == "compose"
    context = Context(site.home, NODE, {"container": driver}, images, drain=True)
    async with site.stack.wire(NODE) as wire, Edge.running(wire, context), site.client() as client:
        for number in range(5):
            with pytest.raises(DsecError):
                await client.create(backend="container", image="base", key=f"{stage}-{number}")
        driver.fails, images.fails = "", False
        for sandbox in images.seen:
            # long walks, during which the node's heart must beat
            assert await asyncio.to_thread(traces, site, sandbox) == []
            assert await asyncio.to_thread(_named, driver.home.parent, sandbox) == []
        assert len(images.seen) >= 5
        made = await client.create(backend="container", image="base")
        assert (await made.stat()).state is State.RUNNING
        assert [record.sandbox async for record in client.list()].count(made.id) == 1


def _named(directory: Path, sandbox: str) -> list[str]:
    return [path for path in paths(directory) if sandbox in path]
