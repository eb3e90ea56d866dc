"""A job's verbs reach every sandbox of it, in one message a node, and say what failed."""

from __future__ import annotations

import asyncio
from collections import Counter

from dsec.plugins.sim import Delay, SimConfig
from dsec.sdk import Client, Failure, State
from tests.control.cluster import Cluster
from tests.jobs.support import SIM, held, nodes, states


async def test_a_preempted_job_pauses_all_its_sandboxes_at_once_and_goes_on(
    cluster: Cluster, client: Client
) -> None:
    slow = SimConfig(delays={"pause": Delay(least=300, most=300)})
    async with nodes(cluster, slow, prefix="verbs") as running:
        batch = await client.create_many(200, backend="sim", image="any", job="j-verbs")
        single = await client.create(backend="sim", image="any", job="j-verbs")
        other = await client.create(backend="sim", image="any", job="j-other")
        await batch.wait()
        job = client.job("j-verbs")
        asked = await cluster_messages(cluster)
        paused = await job.pause()
        assert (paused.states, paused.failed, paused.busy) == ({State.PAUSED: 201}, [], 0)
        assert states(running) == {State.PAUSED: 201, State.RUNNING: 1}
        assert await cluster_messages(cluster) - asked < 100
        assert (await job.pause()).states == {State.PAUSED: 201}
        assert (await single.stat()).state is State.PAUSED
        assert (await job.resume()).states == {State.RUNNING: 201}
        assert states(running) == {State.RUNNING: 202}
        killed = await job.kill()
        assert (killed.states, killed.failed) == ({}, [])
        assert held(running) == [other.id]
        assert (await job.kill()).states == {}
        await other.destroy()


async def cluster_messages(cluster: Cluster) -> int:
    """Requests that core has sent: its connection counts them."""
    return int(cluster.core.jetstream._nc.stats["out_msgs"])


async def test_a_killed_job_creates_nothing_more(cluster: Cluster, client: Client) -> None:
    slow = SimConfig(delays={"create": Delay(least=500, most=8000)})
    async with nodes(cluster, slow, prefix="stop") as running:
        batch = await client.create_many(60, **SIM)
        await client.job(batch.job).kill()
        progress = await batch.wait()
        assert progress.failures == {Failure.GONE: progress.failed}
        assert progress.failed > 0
        await client.job(batch.job).kill()
        assert held(running) == []
        status = await client.job(batch.job).stat()
        assert status.batches[0].cancelled
        assert status.states == {}


async def test_a_job_is_its_projects_own(cluster: Cluster, client: Client) -> None:
    async with nodes(cluster, prefix="own") as running:
        batch = await client.create_many(8, backend="sim", image="any", job="j-mine")
        await batch.wait()
        table = Counter(one.project for node in running.values() for one in node.books.table.values())
        assert table == {"p-tests": 8}
        for node in running.values():
            for one in node.books.table.values():
                one.project = "p-stranger"
        assert (await client.job("j-mine").kill()).states == {}
        assert len(held(running)) == 8


async def test_a_node_that_is_away_is_told_only_when_it_holds_something_of_the_job(
    cluster: Cluster, client: Client
) -> None:
    async with nodes(cluster, prefix="away", count=2):
        batch = await client.create_many(6, backend="sim", image="any", job="j-away")
        await batch.wait()
        await asyncio.sleep(0.2)
    status = await client.job("j-away").pause()
    assert sorted(status.unreached) == ["n-away-0", "n-away-1"]
    assert (await client.job("j-elsewhere").stat()).unreached == []


async def test_one_batch_of_a_job_is_cancelled_without_the_others(cluster: Cluster, client: Client) -> None:
    slow = SimConfig(delays={"create": Delay(least=5000, most=6000)})
    async with nodes(cluster, slow, prefix="one"):
        first = await client.create_many(8, backend="sim", image="any", job="j-two")
        second = await client.create_many(8, backend="sim", image="any", job="j-two")
        cancelled = await second.cancel()
        assert cancelled.failed > 0
        assert (await first.wait()).running == 8
        await client.job("j-two").kill()
