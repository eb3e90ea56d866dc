"""Quotas on a real broker with three cores: never exceeded, always given back, told by name and field."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from dsec.bus import ids, subjects
from dsec.bus.core.admission.bounds import OLD
from dsec.bus.core.admission.budget import Terms
from dsec.bus.core.admission.ledgers import Ledgers
from dsec.bus.core.claims import Claims
from dsec.bus.core.quotas import Quotas
from dsec.bus.errors import DsecError, NoSuchImage, Overloaded, QuotaExceeded, SpecError
from dsec.bus.handlers import decode, ok, result
from dsec.bus.messages import Audit, CreateSandbox, NodeCreate, Record, State
from dsec.bus.nats.directget import DirectGet
from dsec.bus.nats.wire import Wire
from dsec.bus.projects import CreateProject, SetQuota
from dsec.bus.spec import parse_spec
from dsec.bus.transport import Received
from dsec.plugins.iam import Iam
from dsec.plugins.iam.directory import Directory, Who
from dsec.plugins.iam.store import Store
from tests.control.cluster import BookNode, Cluster, now_ms, record
from tests.iam.test_delegation import asked

MIB = 1 << 20
OPERATOR = Who("p-default", "u-admin")
OUTCOMES = tuple[list[str], list[DsecError]]


class RegisteringNode(BookNode):
    """A node whose books are the registry: it writes records, destroys, and audits what fails."""

    image_is_missing = False
    delay = 0.0

    async def create(self, message: Received) -> bytes | None:
        order = decode(NodeCreate, message.data)
        self.orders += 1
        if self.vetoes:
            return await self.give_back(order, message.reply)
        await asyncio.sleep(self.delay)
        if self.image_is_missing:
            await self.audit(order, NoSuchImage.code)
            raise NoSuchImage("no such layer", field="image.base")
        if order.sandbox not in self.sandboxes:
            self.sandboxes[order.sandbox] = order
            await self.store(live(order))
        await self.audit(order, "ok")
        return ok(live(order))

    async def audit(self, order: NodeCreate, outcome: str) -> None:
        entry = Audit(
            time=now_ms(),
            op="sandbox.create",
            principal=order.principal,
            subject=subjects.node_create(self.node),
            target=order.sandbox,
            outcome=outcome,
        )
        await self.wire.publish(
            subjects.audit("edge", "create", order.project), entry.model_dump_json().encode()
        )

    async def destroy(self, sandbox: str) -> None:
        order = self.sandboxes.pop(sandbox)
        key = "$KV.registry." + subjects.registry_key(order.project, sandbox)
        await self.wire.request(key, b"", timeout=5, headers={"KV-Operation": "DEL"})

    async def fail(self, sandbox: str) -> None:
        order = self.sandboxes.pop(sandbox)
        await self.store(live(order).model_copy(update={"state": State.FAILED}))


def live(order: NodeCreate) -> Record:
    made = record(order.sandbox, project=order.project)
    return made.model_copy(update={"spec": order.spec, "applied": order.spec.limits})


class Tenants:
    """Projects p-lab > p-run and principals of them, on a cluster with three cores."""

    def __init__(self, cluster: Cluster, node: RegisteringNode, store: Store) -> None:
        self.cluster, self.node, self.store = cluster, node, store
        self.wires: dict[str, Wire] = {}

    async def project(self, name: str, parent: str | None = None, **quota: Any) -> None:
        request = asked(CreateProject, project=name, parent=parent, quota=quota)
        await self.store.change(lambda tables: Directory(tables).create_project(OPERATOR, request))

    async def quota(self, name: str, **quota: Any) -> None:
        request = asked(SetQuota, project=name, quota=quota)
        await self.store.change(lambda tables: Directory(tables).set_quota(OPERATOR, request))

    async def enter(self, stack: contextlib.AsyncExitStack, project: str) -> None:
        """A principal of the project, connected."""
        name = "u-" + project[2:]
        Iam.create_principal(self.cluster.home, project, name)
        self.wires[project] = await stack.enter_async_context(self.cluster.connected(name))

    async def create(
        self, project: str, key: str | None = None, *, patience: float = 10.0, **limits: Any
    ) -> str:
        body = CreateSandbox(
            op=key or ids.new_operation(),
            deadline=now_ms(patience),
            spec={"image": "base", "limits": limits},
        )
        subject = subjects.request("sandbox", "create", project, "u-" + project[2:])
        answer = await self.wires[project].request(subject, body.model_dump_json().encode(), timeout=patience)
        return str(result(answer.data)["sandbox"])

    async def insist(self, project: str, **limits: Any) -> str:
        """As the SDK does: an Overloaded is asked again."""
        key = ids.new_operation()
        while True:
            try:
                return await self.create(project, key, **limits)
            except Overloaded as error:
                await asyncio.sleep(error.retry_after or 0.1)


@pytest_asyncio.fixture(loop_scope="session")
async def tenants(tmp_path: Path) -> AsyncIterator[Tenants]:
    async with (
        Cluster.running(tmp_path, cores=3) as cluster,
        RegisteringNode.running(cluster, "n-one") as node,
        contextlib.AsyncExitStack() as stack,
    ):
        assert isinstance(node, RegisteringNode)
        wire = await stack.enter_async_context(cluster.connected("iam"))
        tenants = Tenants(cluster, node, await stack.enter_async_context(Store.running(wire)))
        await tenants.project("p-lab", sandboxes=10, memory=1000 * MIB)
        await tenants.project("p-run", "p-lab")
        for project in ("p-lab", "p-run"):
            await tenants.enter(stack, project)
        await asyncio.sleep(0.5)
        yield tenants


async def outcomes(attempts: Iterable[Awaitable[str]]) -> OUTCOMES:
    done = await asyncio.gather(*attempts, return_exceptions=True)
    errors = [one for one in done if isinstance(one, DsecError)]
    made = [one for one in done if isinstance(one, str)]
    assert len(made) + len(errors) == len(done), done
    return made, errors


async def test_in_a_race_over_three_cores_exactly_the_quota_is_made(tenants: Tenants) -> None:
    made, errors = await outcomes(
        tenants.insist(project, memory=10 * MIB) for project in ("p-lab", "p-run") for _ in range(20)
    )
    assert len(set(made)) == len(tenants.node.sandboxes) == 10
    assert {type(error) for error in errors} == {QuotaExceeded}
    assert {error.field for error in errors} == {"sandboxes"}
    assert all("p-lab" in error.message for error in errors)


async def test_memory_is_counted_and_must_be_told(tenants: Tenants) -> None:
    with pytest.raises(SpecError, match="p-lab has a quota of it") as told:
        await tenants.create("p-run")
    assert told.value.field == "limits.memory"
    with pytest.raises(QuotaExceeded) as over:
        await tenants.create("p-run", memory=1001 * MIB)
    assert over.value.field == "memory"
    made, errors = await outcomes(tenants.insist("p-run", memory=300 * MIB) for _ in range(6))
    assert (len(made), {error.field for error in errors}) == (3, {"memory"})


async def test_what_is_destroyed_or_fails_gives_back_at_once(tenants: Tenants) -> None:
    made, _ = await outcomes(tenants.insist("p-run", memory=4 * MIB) for _ in range(10))
    with pytest.raises(QuotaExceeded):
        await tenants.insist("p-lab", memory=4 * MIB)
    await tenants.node.destroy(made[0])
    await tenants.node.fail(made[1])
    async with asyncio.timeout(5):
        await asyncio.gather(*(tenants.insist("p-lab", memory=4 * MIB) for _ in range(2)))
    with pytest.raises(QuotaExceeded):
        await tenants.insist("p-lab", memory=4 * MIB)
    assert len(tenants.node.sandboxes) == 10


async def test_failed_creates_give_back_long_before_their_deadline(tenants: Tenants) -> None:
    tenants.node.image_is_missing = True
    made, errors = await outcomes(tenants.insist("p-run", memory=4 * MIB) for _ in range(40))
    assert (made, {type(error) for error in errors}) == ([], {NoSuchImage})
    tenants.node.image_is_missing = False
    async with asyncio.timeout(5):
        made, _ = await outcomes(tenants.insist("p-run", memory=4 * MIB) for _ in range(10))
    assert len(made) == 10


async def test_creates_that_no_node_takes_give_back(tenants: Tenants) -> None:
    tenants.node.vetoes = True
    made, errors = await outcomes(tenants.insist("p-run", memory=4 * MIB) for _ in range(20))
    assert (made, {error.code for error in errors}) == ([], {"no_capacity"})
    tenants.node.vetoes = False
    async with asyncio.timeout(5):
        made, _ = await outcomes(tenants.insist("p-run", memory=4 * MIB) for _ in range(10))
    assert len(made) == 10


async def test_a_repeated_key_at_the_limit_gives_the_first_sandbox_and_takes_nothing(
    tenants: Tenants,
) -> None:
    tenants.node.delay = 0.3
    first = asyncio.create_task(tenants.create("p-run", "the-key", memory=4 * MIB))
    await asyncio.sleep(0.1)
    made, _ = await outcomes(tenants.insist("p-lab", memory=4 * MIB) for _ in range(9))
    assert len(made) == 9
    sandbox = await first
    for _ in range(6):
        assert await tenants.create("p-run", "the-key", memory=4 * MIB) == sandbox
    assert len(tenants.node.sandboxes) == 10


async def test_a_quota_that_is_lowered_or_raised_holds_soon(tenants: Tenants) -> None:
    await outcomes(tenants.insist("p-run", memory=4 * MIB) for _ in range(5))
    await tenants.quota("p-run", sandboxes=5)
    await asyncio.sleep(OLD)
    made, errors = await outcomes(tenants.insist("p-run", memory=4 * MIB) for _ in range(6))
    assert (made, len(errors)) == ([], 6)
    assert {(type(one), one.field, "p-run" in one.message) for one in errors} == {
        (QuotaExceeded, "sandboxes", True)
    }
    await tenants.quota("p-run", sandboxes=7)
    await asyncio.sleep(OLD)
    made, errors = await outcomes(tenants.insist("p-run", memory=4 * MIB) for _ in range(6))
    assert (len(made), len(errors)) == (2, 4)


async def test_creates_per_second_are_shed_with_the_time_to_wait(tenants: Tenants) -> None:
    await tenants.quota("p-lab", creates_per_second=20)
    await asyncio.sleep(OLD)
    started, passed, made, shed = time.monotonic(), 0.0, 0, list[DsecError]()
    while passed < 2:
        done, errors = await outcomes(tenants.create("p-run") for _ in range(5))
        made, shed = made + len(done), shed + errors
        passed = time.monotonic() - started
        await asyncio.sleep(0.02)
    assert 35 <= made <= 20 + 20 * (passed + 0.3)
    assert {(type(error), error.field) for error in shed} == {(Overloaded, "creates_per_second")}
    assert all(error.retry_after for error in shed)


async def test_a_project_without_quotas_is_not_counted(tenants: Tenants) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await tenants.enter(stack, "p-free")
        made, errors = await outcomes(tenants.create("p-free") for _ in range(30))
    assert (len(made), errors) == (30, [])
    async with DirectGet.running(tenants.cluster.core) as reader:
        assert (await Ledgers(tenants.cluster.core, reader).read("p-free"))[1] == 0


@pytest.mark.kill
async def test_what_a_dead_core_held_comes_back_when_its_lease_is_over(tmp_path: Path) -> None:
    async with (
        Cluster.running(tmp_path) as cluster,
        RegisteringNode.running(cluster, "n-one") as node,
        cluster.connected("iam") as wire,
        Store.running(wire) as store,
    ):
        assert isinstance(node, RegisteringNode)
        tenants = Tenants(cluster, node, store)
        await tenants.project("p-lab", sandboxes=5)
        async with contextlib.AsyncExitStack() as stack:
            await tenants.enter(stack, "p-lab")
            reader = await stack.enter_async_context(DirectGet.running(cluster.core))

            claims = Claims(cluster.core, reader)

            async with Quotas.running(cluster.core, reader, claims, Terms(lease=4000, grace=1000)) as dying:
                for number in range(3):
                    claim = await claims.claim("p-lab", f"op-{number}", "digest")
                    claim = await claims.settle(claim, ids.sandbox_on("n-one"))
                    _, deadline = await dying.charge(claim, parse_spec({"image": "base"}), now_ms(60))
                    assert deadline <= now_ms(3)
            made, errors = await outcomes(tenants.create("p-lab") for _ in range(3))
            assert (len(made), {type(error) for error in errors}) == (2, {Overloaded})
            await asyncio.sleep(4)
            assert await tenants.insist("p-lab")
            assert len(node.sandboxes) == 3
