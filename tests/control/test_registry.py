"""Streams that any number of parts may make, a trail nobody can shorten, and lists of one's own sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from nats.js.errors import APIError

from dsec.bus import ids
from dsec.bus.errors import GoneError, SpecError
from dsec.bus.messages import ListSandboxes, Record, Sandboxes, State
from dsec.bus.nats.appender import Appender
from dsec.bus.registry import Page, ensure, lasting, streams
from dsec.bus.spec import GIB
from dsec.plugins.iam import Iam
from tests.control.cluster import BookNode, Cluster, now_ms, record


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    home: Path = tmp_path_factory.mktemp("registry")
    async with Cluster.running(home) as running:
        yield running


def query(*, limit: int) -> ListSandboxes:
    return ListSandboxes(op="list", deadline=0, limit=limit)


async def listed(cluster: Cluster, **options: object) -> Sandboxes:
    body = {"op": ids.new_operation(), "deadline": now_ms(10)} | options
    return Sandboxes.model_validate(await cluster.ask("sandbox", "list", orjson.dumps(body)))


async def put(cluster: Cluster, node: str, records: list[Record]) -> None:
    Iam.create_node(cluster.home, node)
    async with cluster.connected(node) as wire, Appender.running(wire) as appender:
        stored = [
            await appender.append(
                f"$KV.registry.{one.project}.{one.node}.{one.sandbox}", one.model_dump_json().encode()
            )
            for one in records
        ]
        await asyncio.gather(*stored)


async def test_streams_are_made_once_by_any_number_of_parts_at_once(cluster: Cluster) -> None:
    async with cluster.connected("core") as other:
        await asyncio.gather(ensure(cluster.core.jetstream), ensure(other.jetstream, 2 * GIB))
    for config in streams(64 << 20):
        assert config.name
        info = await cluster.operator.jetstream.stream_info(config.name)
        assert info.config.subjects == config.subjects
        assert info.config.max_bytes in {config.max_bytes, -1}
        assert info.config.allow_direct


async def test_nothing_can_be_deleted_or_purged_from_the_audit_trail(cluster: Cluster) -> None:
    info = await cluster.operator.jetstream.stream_info("AUDIT")
    assert info.config.deny_delete
    assert info.config.deny_purge
    with pytest.raises(APIError):  # not even by updating the stream with core's right to do so
        await cluster.core.jetstream.update_stream(info.config, deny_purge=False)


async def test_a_project_sees_its_own_sandboxes_in_pages(cluster: Cluster) -> None:
    own = [record(f"s-list-own{n:04}", created=5000 - n) for n in range(1500)]
    others = [record(f"s-list-other{n:04}", project="p-other", created=n) for n in range(100)]
    gone = [record(f"s-list-gone{n:04}", created=n, state=State.DESTROYED) for n in range(10)]
    await put(cluster, "n-list", [*own[:700], *others, *gone, *own[700:]])
    assert [one.sandbox for one in await pages(cluster)] == [one.sandbox for one in own]
    destroyed = await pages(cluster, state="destroyed")
    assert [one.sandbox for one in destroyed] == [one.sandbox for one in gone]
    assert len(await pages(cluster, gone=True)) == 1510
    with pytest.raises(SpecError) as caught:
        await listed(cluster, limit=0)
    assert caught.value.field == "limit"


async def pages(cluster: Cluster, **options: object) -> list[Record]:
    """The whole list, page by page."""
    page = await listed(cluster, **options)
    found = page.sandboxes
    while page.more:
        page = await listed(cluster, cursor=page.cursor, **options)
        found += page.sandboxes
    return found


async def test_what_changes_while_it_is_listed_comes_twice_and_what_is_new_is_not_missed(
    cluster: Cluster,
) -> None:
    old = [record(f"s-moves-old{n}") for n in range(20)]
    await put(cluster, "n-moves", old)
    first = await listed(cluster, limit=5, job=None)
    moved = first.sandboxes[0]
    await put(cluster, "n-late", [record("s-late-new0")])
    page, rest = first, list[Record]()
    async with cluster.connected("n-" + moved.sandbox.split("-")[1]) as wire, Appender.running(wire) as again:
        where = f"$KV.registry.{moved.project}.{moved.node}.{moved.sandbox}"
        await (await again.append(where, moved.model_dump_json().encode()))
    while page.more:
        page = await listed(cluster, cursor=page.cursor)
        rest += page.sandboxes
    names = [one.sandbox for one in rest]
    assert names[-2:] == ["s-late-new0", moved.sandbox]
    assert {one.sandbox for one in old} <= {one.sandbox for one in first.sandboxes} | set(names)


async def test_an_older_client_goes_on_after_a_sandbox(cluster: Cluster) -> None:
    await put(cluster, "n-older", [record(f"s-older-one{n}", project="p-tests") for n in range(3)])
    rest = await listed(cluster, after="s-older-one1")
    assert [one.sandbox for one in rest.sandboxes if one.node == "n-older"] == ["s-older-one2"]
    with pytest.raises(GoneError) as caught:
        await listed(cluster, after="s-older-none")
    assert caught.value.field == "after"


async def test_a_created_sandbox_is_listed_once_its_node_has_told(cluster: Cluster) -> None:
    async with BookNode.running(cluster, "n-tells") as node:
        await asyncio.sleep(0.6)
        sandbox = await cluster.create()
        await node.store(record(sandbox, created=1))
        assert sandbox in {one.sandbox for one in await pages(cluster)}


async def test_what_has_ended_expires(cluster: Cluster) -> None:
    live = record("s-ended-live")
    now = now_ms() // 1000
    gone = live.model_copy(update={"state": State.DESTROYED})
    failed = live.model_copy(update={"state": State.FAILED, "expires": (now + 100) * 1000})
    assert lasting(live) == {}
    assert lasting(gone) == {"Nats-TTL": "1h"}
    assert 3690 <= int(lasting(failed)["Nats-TTL"].rstrip("s")) <= 3701
    Iam.create_node(cluster.home, "n-ended")
    async with cluster.connected("n-ended") as wire, Appender.running(wire) as appender:
        where = "$KV.registry.p-tests.n-ended.s-ended-live"
        await (await appender.append(where, gone.model_dump_json().encode(), headers={"Nats-TTL": "1s"}))
        assert live.sandbox in {one.sandbox for one in await pages(cluster, gone=True)}
        await asyncio.sleep(2.5)
        assert live.sandbox not in {one.sandbox for one in await pages(cluster, gone=True)}


@given(st.integers(0, 30), st.integers(1, 10), st.integers(200, 5000))
def test_pages_put_together_are_the_whole_list(count: int, limit: int, max_bytes: int) -> None:
    records = [record(f"s-one-{n:04}", created=n // 3) for n in range(count)]
    seen: list[Record] = []
    cursor, more = 0, True
    while more:
        page = Page(query(limit=limit), cursor, max_bytes=max_bytes)
        for sequence, one in enumerate(records, start=1):
            if sequence >= cursor:
                page.offer(sequence, one)
        got = page.answer(more=False)
        assert len(got.sandboxes) <= limit
        assert len(got.sandboxes) <= 1 or len(got.model_dump_json()) <= max_bytes + 100
        seen += got.sandboxes
        cursor, more = got.cursor, got.more
    assert seen == records
