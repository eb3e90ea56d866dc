"""The watcher on a real broker: whom it fails, when, how often, and what a returning node finds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from dsec.bus import subjects
from dsec.bus.errors import Failure, GoneError, NoCapacity, PolicyError
from dsec.bus.handlers import decode, result
from dsec.bus.ids import new_operation
from dsec.bus.messages import Audit, Event, FailNode, Fleet, NodeStatus, Record, Standing, State
from dsec.bus.nats.wire import Wire
from dsec.bus.nodes import EXPECTED, NodeEntry, Nodes, failed, joined
from dsec.bus.registrar import STREAM, encoded, subject_of, tombstone
from dsec.bus.transport import Received
from dsec.plugins.edge.clock import offset
from dsec.plugins.scheduler.silence import Patience
from dsec.plugins.scheduler.watcher import Watcher
from tests.control.cluster import Cluster, now_ms
from tests.fencing.site import eventually
from tests.fencing.support import Quiet, of_node
from tests.wire.support import until

FAST = Patience(suspect=0.4, fail=0.8, grace=0.2, tick=0.05, window=30.0)


@pytest.fixture
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """One of its own for each test, since a watcher counts all nodes that there are."""
    async with Cluster.running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def watching(cluster: Cluster, patience: Patience = FAST) -> AsyncIterator[Watcher]:
    async with cluster.connected("scheduler") as wire, Watcher.running(wire, patience) as watcher:
        yield watcher


async def fleet(watcher: Watcher) -> dict[str, NodeStatus]:
    answer = result(await watcher.fleet(Received("", "", b"")))
    return {node.node: node for node in Fleet.model_validate(answer).nodes}


@contextlib.asynccontextmanager
async def nodes(cluster: Cluster, *names: str) -> AsyncIterator[list[Quiet]]:
    """Nodes that beat until told otherwise."""
    async with contextlib.AsyncExitStack() as stack:
        made = [await stack.enter_async_context(Quiet.running(cluster, name)) for name in names]
        for node in made:
            await stack.enter_async_context(node.beating())
        yield made


async def standing(watcher: Watcher, node: str, wanted: Standing) -> None:
    async def reached() -> bool:
        return (await fleet(watcher))[node].standing is wanted

    await eventually(reached, within=5)


async def registered(node: Quiet, count: int) -> list[Record]:
    records = [of_node(node.node, f"box{number:02}") for number in range(count)]
    for record in records:
        node.registrar.put(record, fresh=True)
    await node.held(records[-1])
    return records


async def told(cluster: Cluster, record: Record) -> tuple[int, int]:
    """How many events and audit entries tell of the sandbox's failure."""
    subject = subjects.event("failed", record.project, record.sandbox)
    events = [decode(Event, one.data) for one in await cluster.stored("EVENT", subject)]
    assert all(event.record.failure is Failure.INFRA for event in events)
    trail = await cluster.stored("AUDIT", subjects.audit("scheduler", "fail", record.project))
    return len(events), sum(decode(Audit, one.data).target == record.sandbox for one in trail)


async def test_two_watchers_fail_a_silent_nodes_sandboxes_once(cluster: Cluster) -> None:
    async with watching(cluster) as watcher, watching(cluster), nodes(cluster, "n-w1", "n-w2") as (_, well):
        (other,) = await registered(well, 1)
        async with Quiet.running(cluster, "n-dead") as dead:
            records = await registered(dead, 20)
            ended = records[0].model_copy(update={"state": State.FAILED, "failure": Failure.LIMIT})
            dead.registrar.put(ended)
            async with dead.beating():
                await standing(watcher, "n-dead", Standing.ALIVE)
            await standing(watcher, "n-dead", Standing.SUSPECT)
            await standing(watcher, "n-dead", Standing.FAILED)
            await swept(dead)
            for record in records[1:]:
                held = await dead.held(record)
                assert held is not None
                assert (held.state, held.failure, held.fenced) == (State.FAILED, Failure.INFRA, True)
                assert await told(cluster, record) == (1, 1)
            assert await dead.held(ended) == ended  # why it failed before is not forgotten
            assert await well.held(other) == other


async def swept(node: Quiet) -> None:
    async def done() -> bool:
        entry = await node.entry()
        return entry.fenced > 0 and entry.swept == entry.fenced

    await eventually(done, within=5)


async def test_a_node_that_begins_a_new_life_first_has_won(cluster: Cluster) -> None:
    others, late_node = nodes(cluster, "n-w1", "n-w2"), Quiet.running(cluster, "n-late")
    async with watching(cluster) as watcher, others, late_node as late:
        (record,) = await registered(late, 1)
        async with late.beating():
            await standing(watcher, "n-late", Standing.ALIVE)
        stale = await late.nodes.get("n-late", timeout=2)
        assert stale is not None
        assert await late.nodes.put(joined(stale.entry, "n-late", 2, now_ms()), stale.revision)
        assert await watcher._nodes.put(failed(stale.entry, 1, by="me", reason=""), stale.revision) is None
        late.epoch = 2
        async with late.beating():
            await standing(watcher, "n-late", Standing.ALIVE)
            assert await late.held(record) == record


async def test_what_a_dead_watcher_left_half_done_is_finished(cluster: Cluster) -> None:
    async with Quiet.running(cluster, "n-half") as node:
        records = await registered(node, 10)
        async with cluster.connected("scheduler") as wire:
            for record in records[:5]:  # written, and not told to anybody
                stored = await node.reader.last(STREAM, subject_of(record))
                assert stored is not None
                data, headers = encoded(tombstone(record, "silence"))
                headers |= {EXPECTED: str(stored.sequence)}
                await wire.request(subject_of(record), data, timeout=2, headers=headers)
            entry = NodeEntry(
                node="n-half", epoch=1, fenced=1, since=0, failed=1, by="dead", reason="silence"
            )
            await Nodes(wire).put(entry, 0)
        async with watching(cluster):
            await swept(node)
        for record in records:
            held = await node.held(record)
            assert held is not None
            assert held.fenced
            assert await told(cluster, record) == (1, 1)


async def test_records_of_a_later_life_are_left_alone(cluster: Cluster) -> None:
    async with Quiet.running(cluster, "n-again") as node:
        (lost,) = await registered(node, 1)
        fresh = of_node("n-again", "fresh", epoch=2)
        node.registrar.put(fresh, fresh=True)
        await node.held(fresh)
        entry = NodeEntry(node="n-again", epoch=2, fenced=1, since=now_ms(), failed=1, reason="silence")
        await node.nodes.put(entry, 0)
        async with watching(cluster):
            await swept(node)
        assert await node.held(fresh) == fresh
        held = await node.held(lost)
        assert held is not None
        assert held.fenced


async def test_the_last_words_of_a_dead_life_bring_no_node_back(cluster: Cluster) -> None:
    others, dead = nodes(cluster, "n-w1", "n-w2"), Quiet.running(cluster, "n-ghost")
    async with watching(cluster) as watcher, others, dead as ghost:
        async with ghost.beating():
            await standing(watcher, "n-ghost", Standing.ALIVE)
        await standing(watcher, "n-ghost", Standing.FAILED)
        async with ghost.beating():
            await asyncio.sleep(0.3)
            await standing(watcher, "n-ghost", Standing.FAILED)
            ghost.epoch = 2
            await standing(watcher, "n-ghost", Standing.ALIVE)


async def test_many_nodes_at_once_are_held_for_the_operator(cluster: Cluster) -> None:
    names = [f"n-h{number}" for number in range(4)]
    async with watching(cluster) as watcher, nodes(cluster, "n-w1"):
        async with nodes(cluster, *names):
            for name in names:
                await standing(watcher, name, Standing.ALIVE)
        await until(lambda: watcher.held == frozenset(names), within=5)
        assert await ordered(cluster.operator, names[0]) is Standing.FAILED
        await standing(watcher, names[0], Standing.FAILED)
        await asyncio.sleep(0.3)
        assert {(await fleet(watcher))[name].standing for name in names[1:]} == {Standing.SUSPECT}


async def ordered(wire: Wire, node: str) -> Standing:
    """The operator's word over the bus."""
    body = FailNode(op=new_operation(), deadline=now_ms(10), node=node).model_dump_json().encode()
    return NodeStatus.model_validate(
        result((await wire.request(subjects.SCHED_FAIL, body, timeout=5)).data)
    ).standing


async def test_only_the_operator_may_say_that_a_node_is_dead(cluster: Cluster) -> None:
    async with watching(cluster), Quiet.running(cluster, "n-node") as node:
        for other in (cluster.tenant, node.wire, cluster.core):
            with pytest.raises(PolicyError):
                await ordered(other, "n-node")
        with pytest.raises(GoneError):
            await ordered(cluster.operator, "n-never-was")


async def test_a_node_may_write_no_other_nodes_life_and_no_other_nodes_records(cluster: Cluster) -> None:
    async with Quiet.running(cluster, "n-liar") as liar:
        for subject in ("$KV.nodes.n-other", subject_of(of_node("n-other", "theirs"))):
            with pytest.raises(PolicyError):
                await liar.wire.request(subject, b"{}", timeout=2)


async def test_a_node_whose_clock_is_off_is_told_and_gets_no_work(cluster: Cluster) -> None:
    async with watching(cluster) as watcher, Quiet.running(cluster, "n-skewed") as node:
        node.offset = 5000
        async with node.beating():
            await standing(watcher, "n-skewed", Standing.ALIVE)
            assert 4000 < (await fleet(watcher))["n-skewed"].offset < 6000
            with pytest.raises(NoCapacity):
                await cluster.create(timeout=3)


async def test_a_nodes_clock_is_compared_with_the_brokers(cluster: Cluster) -> None:
    async with Quiet.running(cluster, "n-clock") as node:
        assert abs(await offset(node.wire)) < 200  # the same machine
