"""Batches and jobs of real containers on one real edge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dsec.bus.driver import Handle, Order, Rootfs
from dsec.bus.errors import NoSuchImage
from dsec.plugins.container import ContainerDriver
from dsec.plugins.images import ErofsImages
from dsec.plugins.images.base import base_image
from dsec.sdk import Failure, State
from tests.edge.support import Site, control_plane, running_streams, stored, traces

pytestmark = pytest.mark.node


class Unhurried(ContainerDriver):
    """The real driver, which takes its time once it is told to."""

    seconds = 0.0

    async def create(self, order: Order, rootfs: Rootfs) -> Handle:
        await asyncio.sleep(self.seconds)
        return await super().create(order, rootfs)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    path = tmp_path_factory.mktemp("edge")
    for directory in (path, *path.parents[:2]):
        directory.chmod(0o711)
    images, driver = ErofsImages(path / "images"), Unhurried(path / "container")
    await driver.check()
    await images.import_file("base", await base_image(), "base")
    async with running_streams(path / "home") as stack, control_plane(stack):
        site = Site(stack, images, driver, path / "node")
        yield site
        driver.seconds = 0.0
        async with site.edge(drain=True):  # what a failed test left
            pass
    await images.close()
    await driver.close()


async def test_a_batch_of_containers_runs_pauses_and_is_killed_without_a_trace(site: Site) -> None:
    async with site.edge(drain=True), site.client() as client:
        batch = await client.create_many(
            6, image="base", overrides={2: {"env": {"NUMBER": "two"}}, 4: {"image": "no-such-layer"}}
        )
        sandboxes = {sandbox.id: sandbox async for sandbox in batch}
        assert set(sandboxes) == {name for number, name in batch.ids.items() if number != 4}
        assert isinstance(batch.failures[4], NoSuchImage)
        assert (await batch.progress()).failures == {Failure.SPEC: 1}
        failed = await client.attach(batch.ids[4])
        assert failed.record.state is State.FAILED
        two = sandboxes[batch.ids[2]]
        assert (await two.run("echo $NUMBER")).stdout == "two\n"
        job = client.job(batch.job)
        assert (await job.pause()).states == {State.PAUSED: 5}
        assert (await two.stat()).state is State.PAUSED
        assert (await job.resume()).states == {State.RUNNING: 5}
        assert (await two.run("echo on")).stdout == "on\n"
        assert (await job.kill()).states == {}
        assert [one for sandbox in sandboxes for one in traces(site, sandbox)] == []
        ended = {record.sandbox async for record in client.list(state="destroyed", job=batch.job)}
        assert ended == set(sandboxes)


async def test_a_killed_edges_successor_finishes_the_batch_and_makes_nothing_twice(site: Site) -> None:
    assert isinstance(site.driver, Unhurried)
    site.driver.seconds = 0.6
    async with site.client() as client:
        async with site.edge():
            batch = await client.create_many(40, image="base")
            assert not (await batch.progress()).done
            await asyncio.sleep(0.3)
        async with site.edge(drain=True):  # what was not created yet ended with the first edge
            progress = await batch.wait()
            assert (progress.running, progress.failed) == (40, 0)
            alive = [sandbox.id async for sandbox in batch]
            assert sorted(alive) == sorted(batch.ids.values())
            created = await stored(site.stack, "EVENT", "event.created.>")
            names = [one.subject.rpartition(".")[2] for one in created]
            assert sorted(name for name in names if name in set(alive)) == sorted(alive)
            await client.job(batch.job).kill()
