"""Batches on a real broker: every sandbox once, whatever is killed; failures typed and counted."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from dsec.bus.core.jobs import execute
from dsec.bus.errors import (
    Cancelled,
    Conflict,
    Failure,
    NoCapacity,
    NodeLost,
    SpecError,
    UnknownField,
    Unsupported,
)
from dsec.plugins.sim import Delay, Fault, SimConfig
from dsec.sdk import Client, State
from dsec.sdk.link import new_operation
from tests.control.cluster import Cluster
from tests.jobs.support import SIM, client_of, core_process, held, nodes, until


async def test_every_sandbox_of_a_batch_runs_once_and_can_be_read(cluster: Cluster, client: Client) -> None:
    async with nodes(cluster, prefix="once") as running:
        batch = await client.create_many(300, **SIM)
        assert len(batch.ids) == 300
        found = {sandbox.id async for sandbox in batch}
        assert found == set(batch.ids.values()) == set(held(running))
        progress = await batch.progress()
        assert (progress.running, progress.failed, progress.done) == (300, 0, True)
        listed = {record.sandbox async for record in client.list(job=batch.job)}
        assert listed == found
        share = [node.sandboxes for node in running.values()]
        assert max(share) - min(share) <= 1
        await client.job(batch.job).kill()


async def test_overrides_change_their_numbers_and_merge_what_is_merged(
    cluster: Cluster, client: Client
) -> None:
    async with nodes(cluster, prefix="over"):
        batch = await client.create_many(
            4,
            backend="sim",
            image="any",
            env={"A": "1", "B": "2"},
            overrides={1: {"env": {"B": "3"}, "ttl": 60}, 3: {"image": "other", "limits": {"cpu": 2}}},
        )
        records = {sandbox.id: sandbox.record async for sandbox in batch}
        specs = [records[batch.ids[number]].spec for number in range(4)]
        assert [spec.env for spec in specs] == [
            {"A": "1", "B": "2"},
            {"A": "1", "B": "3"},
            {"A": "1", "B": "2"},
            {"A": "1", "B": "2"},
        ]
        assert [spec.ttl for spec in specs] == [86400, 60, 86400, 86400]
        assert [spec.image.base for spec in specs] == ["any", "any", "any", "other"]
        assert records[batch.ids[3]].applied.cpu == 2
        await client.job(batch.job).kill()


async def test_a_repeated_key_is_the_same_batch_and_another_request_a_conflict(
    cluster: Cluster, client: Client
) -> None:
    async with nodes(cluster, prefix="again") as running:
        key = new_operation()
        first = await client.create_many(20, key=key, **SIM)
        again = await client.create_many(20, key=key, **SIM)
        assert (again.ids, again.job) == (first.ids, first.job)
        await again.wait()
        assert len(held(running)) == 20
        with pytest.raises(Conflict):
            await client.create_many(21, key=key, **SIM)
        await client.job(first.job).kill()


async def test_errors_of_template_and_overrides_name_the_field(client: Client) -> None:
    with pytest.raises(UnknownField) as unknown:
        await client.create_many(3, overrides={2: {"limits": {"gpus": 1}}}, **SIM)  # type: ignore[typeddict-unknown-key]  # the mistake under test
    assert unknown.value.field == "overrides.2.limits.gpus"
    with pytest.raises(SpecError) as wrong:
        await client.create_many(3, overrides={0: {"ttl": -1}}, **SIM)
    assert wrong.value.field == "overrides.0.ttl"
    with pytest.raises(SpecError) as outside:
        await client.create_many(3, overrides={3: {"ttl": 1}}, **SIM)
    assert outside.value.field == "overrides.3"
    with pytest.raises(SpecError) as other:
        await client.create_many(3, overrides={0: {"job": "j-other"}}, **SIM)
    assert other.value.field == "overrides.0.job"
    with pytest.raises(SpecError) as many:
        await client.create_many(32_001, **SIM)
    assert many.value.field == "count"
    with pytest.raises(UnknownField) as template:
        await client._link.call(
            client._link.subject("sandbox", "create"), {"spec": {**SIM, "imgae": "x"}, "count": 2}
        )
    assert template.value.field == "imgae"
    with pytest.raises(Unsupported) as secrets:
        await client._link.call(
            client._link.subject("sandbox", "create"), {"spec": SIM, "count": 2, "secrets": {"A": "b"}}
        )
    assert secrets.value.field == "secrets"


async def test_failures_are_typed_counted_and_readable(cluster: Cluster, client: Client) -> None:
    config = SimConfig(seed=3, faults=(Fault(verb="create", rate=0.5, failure=Failure.LIMIT),))
    async with nodes(cluster, config, prefix="faults") as running:
        batch = await client.create_many(60, **SIM)
        progress = await batch.wait()
        assert progress.running + progress.failed == 60
        assert 10 < progress.failed < 50
        assert progress.failures == {Failure.LIMIT: progress.failed}
        assert {error.message for error in batch.failures.values()} == {"a simulated failure"}
        assert len(held(running)) == progress.running
        failed = {record.sandbox async for record in client.list(state="failed", job=batch.job)}
        assert failed == {batch.ids[number] for number in batch.failures}
        status = await client.job(batch.job).stat()
        assert status.batches[0].failures == {Failure.LIMIT: progress.failed}
        await client.job(batch.job).kill()


async def test_what_no_node_has_room_for_fails_and_vetoes_go_elsewhere(
    cluster: Cluster, client: Client
) -> None:
    async with nodes(cluster, SimConfig(sandboxes=10), prefix="room") as running:
        batch = await client.create_many(50, **SIM)
        progress = await batch.wait()
        assert (progress.running, progress.failures) == (40, {Failure.INFRA: 10})
        assert all(isinstance(error, NoCapacity) for error in batch.failures.values())
        assert [node.sandboxes for node in running.values()] == [10] * 4
        assert len(batch.ids) == 40
        await client.job(batch.job).kill()


async def test_a_cancelled_batch_begins_nothing_more_and_what_runs_runs_on(
    cluster: Cluster, client: Client
) -> None:
    slow = SimConfig(delays={"create": Delay(least=500, most=8000)})
    async with nodes(cluster, slow, prefix="slow") as running:
        batch = await client.create_many(80, **SIM)
        async with asyncio.timeout(20):
            while not (await batch.progress()).running:  # noqa: ASYNC110 - it is asked as a user does
                await asyncio.sleep(0.05)
        progress = await batch.cancel()
        assert progress.done
        assert progress.failures == {Failure.GONE: progress.failed}
        assert progress.running > 0
        assert progress.failed > 0
        assert all(isinstance(error, Cancelled) for error in batch.failures.values())
        await asyncio.sleep(1.0)
        assert len(held(running)) == progress.running
        await client.job(batch.job).kill()


async def test_accepted_sandboxes_can_be_read_before_they_run(cluster: Cluster, client: Client) -> None:
    slow = SimConfig(delays={"create": Delay(least=6000, most=6500)})
    async with nodes(cluster, slow, prefix="pending"):
        batch = await client.create_many(8, **SIM)
        read = await asyncio.gather(*(client.attach(one) for one in batch.ids.values()))
        assert {one.record.state for one in read} == {State.PENDING}
        await asyncio.sleep(0.3)  # the registry follows
        pending = {record.sandbox async for record in client.list(state="pending", job=batch.job)}
        assert pending == set(batch.ids.values())
        assert (await batch.wait()).running == 8
        await client.job(batch.job).kill()


@pytest.mark.kill
@pytest.mark.slow
async def test_a_core_killed_in_the_middle_of_a_batch_is_succeeded_and_nothing_is_made_twice(
    tmp_path: Path,
) -> None:
    slow = SimConfig(delays={"create": Delay(least=200, most=3000)})
    async with (
        Cluster.running(tmp_path, cores=0) as cluster,
        nodes(cluster, slow, prefix="kill") as running,
        core_process(cluster) as first,
        client_of(cluster) as client,
    ):
        creating = asyncio.create_task(client.create_many(400, **SIM))
        await until(lambda: bool(held(running)))
        first.kill()
        async with core_process(cluster) as second:
            batch = await creating
            second.kill()
            async with core_process(cluster):
                found = [sandbox.id async for sandbox in batch]
                assert len(found) == len(set(found)) == 400
                assert set(held(running)) == set(found) == set(batch.ids.values())
                assert len(held(running)) == 400
                listed = [record.sandbox async for record in client.list(job=batch.job)]
                assert sorted(listed) == sorted(found)


@pytest.mark.kill
@pytest.mark.slow
async def test_a_core_that_was_stopped_for_long_finds_its_batch_in_other_hands(tmp_path: Path) -> None:
    slow = SimConfig(delays={"create": Delay(least=200, most=5000)})
    async with (
        Cluster.running(tmp_path, cores=0) as cluster,
        nodes(cluster, slow, prefix="stop") as running,
        core_process(cluster) as first,
        client_of(cluster) as client,
    ):
        creating = asyncio.create_task(client.create_many(200, **SIM))
        await until(lambda: bool(held(running)))
        first.send_signal(signal.SIGSTOP)
        async with core_process(cluster):
            await asyncio.sleep(3.5)  # the order goes to the second one
            first.send_signal(signal.SIGCONT)
            batch = await creating
            assert (await batch.wait()).running == 200
            await asyncio.sleep(1.0)  # what the first one might still do
            assert sorted(held(running)) == sorted(batch.ids.values())


@pytest.mark.kill
async def test_a_batch_rides_out_a_killed_broker(tmp_path: Path) -> None:
    slow = SimConfig(delays={"create": Delay(least=200, most=2000)})
    async with (
        Cluster.running(tmp_path) as cluster,
        nodes(cluster, slow, prefix="broker") as running,
        client_of(cluster) as client,
    ):
        creating = asyncio.create_task(client.create_many(200, **SIM))
        await until(lambda: bool(held(running)))
        os.kill(cluster.broker.pid, signal.SIGKILL)
        batch = await creating
        progress = await batch.wait()
        assert (progress.running, progress.failed) == (200, 0)
        assert sorted(held(running)) == sorted(batch.ids.values())


@pytest.mark.slow
async def test_what_a_node_took_that_never_returns_fails_as_lost_and_is_not_made_elsewhere(
    cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "GIVE_UP", 1.0)
    slow = SimConfig(delays={"create": Delay(least=60_000, most=60_000)})
    async with nodes(cluster, prefix="stays", count=1) as staying:
        async with nodes(cluster, slow, prefix="leaves", count=1):
            batch = await client.create_many(20, **SIM)
            here = {name for name in batch.ids.values() if "stays" in name}
            assert 0 < len(here) < 20
        progress = await batch.wait()
        assert (progress.running, progress.failures) == (len(here), {Failure.INFRA: 20 - len(here)})
        assert all(isinstance(error, NodeLost) for error in batch.failures.values())
        assert set(held(staying)) == here
        await client.job(batch.job).kill()
