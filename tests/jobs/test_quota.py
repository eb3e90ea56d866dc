"""A batch takes no more than its project's quota leaves, and is told which quota."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from dsec.bus.errors import Failure, QuotaExceeded
from dsec.sdk import Client
from tests.control.cluster import Cluster
from tests.jobs.support import SIM, held, nodes


@contextlib.asynccontextmanager
async def limited(cluster: Cluster, project: str, **quota: float) -> AsyncIterator[Client]:
    """A client in a new project with this quota."""
    name = f"u-{project}"
    async with Client(cluster.url, cluster.home.credentials / "u-admin.json") as admin:
        await admin.projects.create(f"p-{project}", quota=quota)
        made = await admin.principals.create(name, project=f"p-{project}")
        path = cluster.home.credentials / f"{name}.json"
        made.save(path)
        async with Client(cluster.url, path) as client:
            yield client


async def test_what_a_quota_refuses_of_a_batch_fails_and_the_rest_runs(cluster: Cluster) -> None:
    async with nodes(cluster, prefix="quota") as running, limited(cluster, "few", sandboxes=25) as client:
        batch = await client.create_many(40, **SIM)
        progress = await batch.wait()
        assert (progress.running, progress.failures) == (25, {Failure.LIMIT: 15})
        assert all(isinstance(error, QuotaExceeded) for error in batch.failures.values())
        assert {error.field for error in batch.failures.values()} == {"sandboxes"}
        assert len(held(running)) == 25
        await client.job(batch.job).kill()
        async with asyncio.timeout(20):  # what was destroyed is given back
            while await running_of(client, 20) < 20:  # noqa: ASYNC110 - only trying tells
                await asyncio.sleep(0.2)


async def running_of(client: Client, count: int) -> int:
    """How many of `count` come to run; none does afterwards."""
    batch = await client.create_many(count, **SIM)
    progress = await batch.wait()
    await client.job(batch.job).kill()
    return progress.running


async def test_a_batch_keeps_to_its_projects_rate(cluster: Cluster) -> None:
    async with nodes(cluster, prefix="pace"), limited(cluster, "slow", creates_per_second=20.0) as client:
        started = asyncio.get_running_loop().time()
        batch = await client.create_many(60, **SIM)
        assert (await batch.wait()).running == 60
        assert asyncio.get_running_loop().time() - started > 1.5
        await client.job(batch.job).kill()
