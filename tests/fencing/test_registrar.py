"""Records are written by compare-and-set: nothing that was overtaken gets into the registry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dsec.bus.messages import Record, State
from dsec.bus.nodes import EXPECTED
from dsec.bus.registrar import STREAM, encoded, subject_of, tombstone
from tests.control.cluster import Cluster
from tests.fencing.support import Quiet, of_node


@pytest.fixture
async def node(cluster: Cluster) -> AsyncIterator[Quiet]:
    async with Quiet.running(cluster, "n-reg") as node:
        yield node


async def buried(cluster: Cluster, node: Quiet, record: Record) -> None:
    """The watcher declares the sandbox failed, at the revision that is there."""
    stored = await node.reader.last(STREAM, subject_of(record))
    assert stored is not None
    data, headers = encoded(tombstone(record, "it was silent"))
    async with cluster.connected("scheduler") as wire:
        headers |= {EXPECTED: str(stored.sequence)}
        answer = await wire.request(subject_of(record), data, timeout=2, headers=headers)
    assert b'"error"' not in answer.data


async def test_of_many_changes_the_newest_is_kept(node: Quiet) -> None:
    record = of_node("n-reg", "newest")
    node.registrar.put(record, fresh=True)
    for number in range(200):
        record = record.model_copy(update={"expires": number})
        node.registrar.put(record)
    assert await node.held(record) == record


async def test_a_destroyed_sandbox_leaves_a_tombstone_that_expires(node: Quiet) -> None:
    record = of_node("n-reg", "destroyed")
    node.registrar.put(record, fresh=True)
    gone = record.model_copy(update={"state": State.DESTROYED})
    node.registrar.put(gone)
    assert await node.held(record) == gone
    assert encoded(gone)[1] == {"Nats-TTL": "1h"}


async def test_a_restarted_node_goes_on_from_what_is_there(cluster: Cluster, node: Quiet) -> None:
    record = of_node("n-reg", "restarted")
    node.registrar.put(record, fresh=True)
    assert await node.held(record) == record
    async with Quiet.running(cluster, "n-reg") as successor:
        later = record.model_copy(update={"epoch": 2})
        successor.registrar.put(later)
        assert await successor.held(record) == later


@pytest.mark.parametrize("state", [State.RUNNING, State.DESTROYED])
async def test_a_tombstone_stays_whatever_its_node_writes(
    cluster: Cluster, node: Quiet, state: State
) -> None:
    record = of_node("n-reg", f"tomb{state.value}")
    node.registrar.put(record, fresh=True)
    await node.held(record)
    await buried(cluster, node, record)
    node.registrar.put(record.model_copy(update={"state": state, "epoch": 9}))
    held = await node.held(record)
    assert held is not None
    assert (held.state, held.fenced) == (State.FAILED, True)


async def test_a_stale_life_overwrites_nothing_of_a_later_one(cluster: Cluster, node: Quiet) -> None:
    record = of_node("n-reg", "stale")
    node.registrar.put(record, fresh=True)
    await node.held(record)
    async with Quiet.running(cluster, "n-reg") as successor:
        later = record.model_copy(update={"epoch": 2, "state": State.PAUSED})
        successor.registrar.put(later)
        assert await successor.held(record) == later
    node.registrar.put(record.model_copy(update={"expires": 5}))
    assert await node.held(record) == later


async def test_a_write_whose_acknowledgement_was_lost_is_gone_on_from(node: Quiet) -> None:
    record = of_node("n-reg", "lostack")
    data, headers = encoded(record)
    await node.wire.request(subject_of(record), data, timeout=2, headers=headers | {EXPECTED: "0"})
    node.registrar.put(record, fresh=True)  # as a connection that broke before the answer leaves it
    later = record.model_copy(update={"state": State.PAUSED})
    node.registrar.put(later)
    assert await node.held(record) == later


async def test_what_is_on_the_way_is_stored_before_the_node_ends(cluster: Cluster, node: Quiet) -> None:
    records = [of_node("n-reg", f"last{number}") for number in range(100)]
    async with Quiet.running(cluster, "n-reg") as ending:
        for record in records:
            ending.registrar.put(record, fresh=True)
            ending.registrar.put(record.model_copy(update={"state": State.PAUSED}))
    kept = await asyncio.gather(*(node.held(record) for record in records))
    assert {record.state for record in kept if record} == {State.PAUSED}
    assert None not in kept
