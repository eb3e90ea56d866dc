"""Watching a project: events and lists together miss nothing and tell nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.messages import Record
from dsec.sdk import Client, State
from dsec.sdk.watch import Change, Known
from tests.control.cluster import Cluster, record
from tests.jobs.support import SIM, client_of, nodes, until


@contextlib.asynccontextmanager
async def watching(client: Client, **options: str) -> AsyncIterator[list[Change]]:
    """Every change, in a list that grows."""
    seen: list[Change] = []

    async def follow() -> None:
        async for change in client.watch(**options):
            seen.append(change)  # noqa: PERF401 - `extend` would show them at the end only

    task = asyncio.create_task(follow())
    try:
        yield seen
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def last(seen: list[Change]) -> dict[str, State]:
    return {change.record.sandbox: change.record.state for change in seen}


async def test_a_watch_tells_what_is_there_and_then_each_change_once(
    cluster: Cluster, client: Client
) -> None:
    async with nodes(cluster, prefix="watch"):
        before = await client.create(backend="sim", image="any", job="j-watched")
        async with watching(client, job="j-watched") as seen:
            await until(lambda: bool(seen))
            other = await client.create(backend="sim", image="any", job="j-other")
            after = await client.create(backend="sim", image="any", job="j-watched")
            await after.pause()
            await before.destroy()
            await after.destroy()
            await until(lambda: len(seen) >= 5)
            told = [(change.record.sandbox, change.record.state) for change in seen]
            assert told == [
                (before.id, State.RUNNING),
                (after.id, State.RUNNING),
                (after.id, State.PAUSED),
                (before.id, State.DESTROYED),
                (after.id, State.DESTROYED),
            ]
            assert [change.what for change in seen[1:]] == ["created", "paused", "destroyed", "destroyed"]
        await other.destroy()


@pytest.mark.kill
async def test_a_watch_misses_nothing_across_a_killed_broker(tmp_path: Path) -> None:
    async with (
        Cluster.running(tmp_path) as cluster,
        nodes(cluster, prefix="gap") as running,
        client_of(cluster) as client,
        watching(client) as seen,
    ):
        batch = await client.create_many(40, **SIM)
        await batch.wait()
        names = sorted(batch.ids.values())
        await until(lambda: len(last(seen)) == 40)
        # destroyed while the watcher hears nothing: its subscription is gone with the broker
        held = [one for node in running.values() for one in node.books.table.values()]
        os.kill(cluster.broker.pid, signal.SIGKILL)
        for node in running.values():
            for one in [one for one in held if one.id in names[:10] and one.id in node.books.table]:
                await node.end(one, "while the broker was away")
        more = await client.create_many(10, **SIM)
        await more.wait()
        expected = {name: State.DESTROYED if name in names[:10] else State.RUNNING for name in names}
        expected |= dict.fromkeys(more.ids.values(), State.RUNNING)
        await until(lambda: last(seen) == expected)
        assert len({(change.record.sandbox, change.record.state) for change in seen}) == len(seen)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(State)), max_size=30))
def test_news_are_newer_than_all_before(stories: list[tuple[int, int, State]]) -> None:
    known, told = Known(), list[Record]()
    for epoch, changed, state in stories:
        one = record("s-one-aaaa", state=state).model_copy(update={"epoch": epoch, "changed": changed})
        if known.news(one):
            told.append(one)
        assert not known.news(one)
    ages = [(one.epoch, one.changed) for one in told]
    assert ages == sorted(ages)
    newest = max(((epoch, changed) for epoch, changed, _ in stories), default=None)
    assert not stories or ages[-1] == newest


def test_what_is_in_no_list_any_more_was_destroyed() -> None:
    known = Known()
    kept, lost = record("s-one-kept"), record("s-one-lost")
    assert known.news(kept)
    assert known.news(lost)
    (missing,) = known.missing({kept.sandbox})
    assert (missing.sandbox, missing.state) == (lost.sandbox, State.DESTROYED)
    assert known.news(missing)
    assert not known.missing({kept.sandbox})
