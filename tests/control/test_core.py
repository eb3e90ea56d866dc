"""Creates: one answer per key whichever core gets it, typed refusals, vetoes, audit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from dsec.bus import ids, subjects
from dsec.bus.core.claims import Claims
from dsec.bus.core.orders import digest
from dsec.bus.core.service import Core
from dsec.bus.errors import (
    Conflict,
    DeadlineExceeded,
    NoCapacity,
    NodeLost,
    SpecError,
    UnknownField,
)
from dsec.bus.host import Context
from dsec.bus.messages import Audit, CreateSandbox
from dsec.bus.nats.directget import DirectGet
from dsec.bus.spec import parse_spec
from dsec.plugins.iam import Iam
from tests.control.cluster import PRINCIPAL, PROJECT, BookNode, Cluster, now_ms, record


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster.running(tmp_path, cores=2) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def node(cluster: Cluster) -> AsyncIterator[BookNode]:
    async with BookNode.running(cluster, "n-one") as running:
        yield running


async def test_a_create_is_answered_by_the_node_it_was_placed_on(cluster: Cluster, node: BookNode) -> None:
    sandbox = await cluster.create()
    assert ids.node_of(sandbox) == "n-one"
    assert set(node.sandboxes) == {sandbox}


async def test_one_key_from_many_callers_over_two_cores_makes_one_sandbox(
    cluster: Cluster, node: BookNode
) -> None:
    async with BookNode.running(cluster, "n-two") as other:
        await asyncio.sleep(0.1)
        made = await asyncio.gather(*(cluster.create("the-key") for _ in range(40)))
        assert len(set(made)) == 1
        assert len(node.sandboxes) + len(other.sandboxes) == 1


async def test_a_key_used_with_another_request_is_a_conflict(cluster: Cluster, node: BookNode) -> None:
    await cluster.create("the-key", {"image": "base"})
    with pytest.raises(Conflict) as caught:
        await cluster.create("the-key", {"image": "other"})
    assert caught.value.field == "op"
    assert len(node.sandboxes) == 1


async def test_case_35_a_create_whose_answer_was_lost_returns_the_same_sandbox_when_repeated(
    cluster: Cluster, node: BookNode
) -> None:
    node.answers = False
    with pytest.raises(DeadlineExceeded):
        await cluster.create("the-key", timeout=2)
    node.answers = True
    sandbox = await cluster.create("the-key")
    assert set(node.sandboxes) == {sandbox}


async def test_a_claim_whose_core_died_before_placement_is_taken_over(
    cluster: Cluster, node: BookNode
) -> None:
    spec = {"image": "base"}
    async with DirectGet.running(cluster.core) as reader:
        claims = Claims(cluster.core, reader)
        await claims.claim(PROJECT, "the-key", digest(PRINCIPAL, parse_spec(spec)))
        sandbox = await cluster.create("the-key", spec)
        claim = await claims.get(PROJECT, "the-key")
    assert claim is not None
    assert claim.sandbox == sandbox
    assert set(node.sandboxes) == {sandbox}


async def test_creates_go_on_when_one_of_two_cores_ends(tmp_path: Path) -> None:
    async with Cluster.running(tmp_path, cores=1) as cluster, BookNode.running(cluster, "n-one") as node:
        async with (
            cluster.connected("core") as wire,
            Core.running(wire, Context(tmp_path)),
        ):
            before = [await cluster.create(f"key-{i}") for i in range(10)]
        after = [await cluster.create(f"key-{i}") for i in range(20)]
        assert after[:10] == before
        assert len(node.sandboxes) == 20


async def test_a_claim_whose_node_died_without_a_record_is_placed_again(cluster: Cluster) -> None:
    async with BookNode.running(cluster, "n-dead") as dead:
        dead.answers = False
        with pytest.raises(DeadlineExceeded):
            await cluster.create("the-key", timeout=2)
        assert len(dead.sandboxes) == 1
    async with BookNode.running(cluster, "n-live") as live:
        await asyncio.sleep(5.2)  # until the dead one is suspect
        sandbox = await cluster.create("the-key")
        assert set(live.sandboxes) == {sandbox}


async def test_a_sandbox_that_died_with_its_node_is_lost_and_not_made_twice(cluster: Cluster) -> None:
    async with BookNode.running(cluster, "n-dead") as dead:
        sandbox = await cluster.create("the-key")
        await dead.store(record(sandbox))
    async with BookNode.running(cluster, "n-live") as live:
        await asyncio.sleep(5.2)
        with pytest.raises(NodeLost):
            await cluster.create("the-key")
        assert not live.sandboxes


async def test_a_veto_leads_to_another_node(cluster: Cluster, node: BookNode) -> None:
    node.vetoes = True
    async with BookNode.running(cluster, "n-two") as other:
        await asyncio.sleep(0.6)
        made = [await cluster.create(f"key-{i}", secrets={"TOKEN": "t"}) for i in range(10)]
        assert set(other.sandboxes) == set(made)
        assert {order.secrets["TOKEN"] for order in other.sandboxes.values()} == {"t"}
        assert node.orders > 0
        assert [await cluster.create(f"key-{i}") for i in range(10)] == made


async def test_when_every_node_vetoes_the_caller_is_told_why(cluster: Cluster, node: BookNode) -> None:
    node.vetoes = True
    with pytest.raises(NoCapacity, match="n-one is full") as caught:
        await cluster.create("the-key")
    assert caught.value.retry_after
    node.vetoes = False
    assert await cluster.create("the-key") in node.sandboxes


async def test_without_a_node_there_is_no_capacity(cluster: Cluster) -> None:
    with pytest.raises(NoCapacity):
        await cluster.create()


@pytest.mark.parametrize(
    ("spec", "error", "field"),
    [
        ({"image": "base", "gpu": 1}, UnknownField, "gpu"),
        ({"image": "base", "limits": {"gpus": 1}}, UnknownField, "limits.gpus"),
        ({"image": "base", "limits": {"pids": 0}}, SpecError, "limits.pids"),
        ({"image": "../etc"}, SpecError, "image.base"),
        ({}, SpecError, "image"),
        ({"image": "base", "ttl": -1}, SpecError, "ttl"),
        ({"image": "base", "network": "host"}, SpecError, "network"),
    ],
)
async def test_a_wrong_spec_is_refused_naming_the_field_and_audited(
    cluster: Cluster, node: BookNode, spec: dict[str, Any], error: type[SpecError], field: str
) -> None:
    request = {"op": "the-key", "deadline": now_ms(10), "spec": spec}
    with pytest.raises(error) as caught:
        await cluster.ask("sandbox", "create", orjson.dumps(request))
    assert caught.value.field == field
    assert not node.orders
    assert [entry.outcome for entry in await audited(cluster)] == [error.code]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"not json", None),
        (orjson.dumps({"op": "a.b", "deadline": 1 << 50, "spec": {}}), "op"),
        (orjson.dumps({"op": "a*", "deadline": 1 << 50, "spec": {}}), "op"),
        (orjson.dumps({"op": "a", "spec": {}}), "deadline"),
    ],
)
async def test_a_malformed_request_is_refused(
    cluster: Cluster, node: BookNode, body: bytes, field: str | None
) -> None:
    with pytest.raises(SpecError) as caught:
        await cluster.ask("sandbox", "create", body)
    assert caught.value.field == field
    assert not node.orders


async def test_an_expired_deadline_is_refused_before_any_work(cluster: Cluster, node: BookNode) -> None:
    request = {"op": "the-key", "deadline": now_ms(-1), "spec": {"image": "base"}}
    with pytest.raises(DeadlineExceeded):
        await cluster.ask("sandbox", "create", orjson.dumps(request))
    assert not await cluster.stored("KV_ops", "$KV.ops.>")


async def test_a_forged_reply_subject_gets_no_answer_and_is_audited(cluster: Cluster, node: BookNode) -> None:
    heard: list[object] = []
    Iam.create_node(cluster.home, "n-victim")
    async with cluster.connected("n-victim") as victim:
        await victim.subscribe("node.create.n-victim", heard.append)
        request = CreateSandbox(op="the-key", deadline=now_ms(10), spec={"image": "base"})
        subject = subjects.request("sandbox", "create", PROJECT, PRINCIPAL)
        await cluster.tenant.publish(subject, request.model_dump_json().encode(), "node.create.n-victim")
        (entry,) = await audited(cluster)
    assert entry.outcome == "forged_reply"
    assert entry.principal == PRINCIPAL
    assert not node.orders
    assert not heard


async def test_a_create_is_audited_with_its_sandbox_and_secrets_are_stored_nowhere(
    cluster: Cluster, node: BookNode
) -> None:
    sandbox = await cluster.create(secrets={"TOKEN": "hunter2-hunter2"})
    assert node.sandboxes[sandbox].secrets == {"TOKEN": "hunter2-hunter2"}
    (entry,) = await audited(cluster)
    assert (entry.op, entry.target, entry.outcome) == ("sandbox.create", sandbox, "ok")
    for stream in ("KV_ops", "KV_registry", "AUDIT", "EVENT", "EXEC"):
        assert not [one for one in await cluster.stored(stream, ">") if b"hunter2" in one.data]


async def audited(cluster: Cluster) -> list[Audit]:
    stored = await cluster.stored("AUDIT", f"audit.core.*.{PROJECT}")
    return [Audit.model_validate_json(one.data) for one in stored]
