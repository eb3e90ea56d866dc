"""What leases are made of: ledgers as stored, usage as the registry tells it, bounds while iam is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus import ids, subjects
from dsec.bus.core.admission import NOTHING, Amount, Lease, Ledger
from dsec.bus.core.admission.bounds import OLD, Boundaries
from dsec.bus.core.admission.ledgers import Ledgers, ledger_data, ledger_in
from dsec.bus.core.admission.usage import Usage
from dsec.bus.core.claims import Claims, Cover
from dsec.bus.errors import Overloaded
from dsec.bus.handlers import ok, serving_internal
from dsec.bus.local import Hub, LocalBus
from dsec.bus.messages import State
from dsec.bus.nats.directget import DirectGet
from dsec.bus.projects import ROOT, Bounds, Project, Quota
from dsec.bus.spec import Limits
from dsec.bus.transport import Received
from tests.control.cluster import BookNode, Cluster, record

AMOUNT = st.builds(Amount, st.integers(0, 1000), st.integers(0, 10**6), st.integers(0, 1 << 50))
LEASE = st.builds(Lease, AMOUNT, st.integers(0, 1 << 45), st.integers(0, 1 << 45), st.integers(0, 1 << 40))


@given(
    st.builds(
        Ledger,
        st.dictionaries(st.from_regex(r"c-[a-z0-9]{4}", fullmatch=True), LEASE, max_size=4),
        st.frozensets(st.sampled_from(["p-a", "p-b", "p-c"])),
        st.none() | st.floats(0, 1e6),
        st.floats(0, 1e10),
    )
)
def test_a_ledger_is_read_as_it_was_written(ledger: Ledger) -> None:
    assert ledger_in(ledger_data(ledger)) == ledger
    assert ledger_in(b"") == Ledger()


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with Cluster.running(tmp_path_factory.mktemp("cluster")) as running:
        yield running


async def test_a_ledger_changes_by_compare_and_set(cluster: Cluster) -> None:
    async with DirectGet.running(cluster.core) as reader:
        ledgers = Ledgers(cluster.core, reader)
        assert await ledgers.read("p-cas") == (Ledger(), 0)
        one, other = Ledger(projects=frozenset({"p-one"})), Ledger(projects=frozenset({"p-other"}))
        assert await ledgers.write("p-cas", one, 0)
        assert not await ledgers.write("p-cas", other, 0)
        read, revision = await ledgers.read("p-cas")
        assert read == one
        assert await ledgers.write("p-cas", other, revision)


async def test_usage_follows_the_registry_from_records_to_their_end(cluster: Cluster) -> None:
    told: list[str] = []
    limits = Limits(cpu=0.5, memory=1 << 30)

    async with BookNode.running(cluster, "n-use") as node, DirectGet.running(cluster.core) as reader:
        usage = Usage(cluster.core, reader, told.append)
        first, second, foreign = (ids.sandbox_on("n-use") for _ in range(3))

        async def write(sandbox: str, project: str = "p-use", state: State = State.RUNNING) -> None:
            made = record(sandbox, project=project, state=state)
            await node.store(made.model_copy(update={"applied": limits}))

        await write(first)
        await write(foreign, "p-elsewhere")
        await usage.look(["p-use"])
        one = Amount(1, 500, 1 << 30)
        assert usage.of(["p-use", "p-elsewhere"]) == one
        await write(second, state=State.PAUSED)
        await usage.look(["p-use"])
        assert usage.of(["p-use"]) == one + one
        await write(first, state=State.FAILED)
        await usage.look([])
        assert usage.of(["p-use"]) == one
        key = "$KV.registry." + subjects.registry_key("p-use", second)
        await node.wire.request(key, b"", timeout=5, headers={"KV-Operation": "DEL"})
        await write(first, state=State.DESTROYED)
        await usage.look([])
        assert usage.of(["p-use"]) == NOTHING
        assert usage.knows(first)
        assert usage.knows(second)
        assert not usage.knows(foreign)
        assert set(told) == {first, second}


async def test_covers_are_found_by_project_and_sequence(cluster: Cluster) -> None:
    async with DirectGet.running(cluster.core) as reader:
        claims = Claims(cluster.core, reader)
        cover = Cover("c-one", 1000, (1, 0, 0))
        made = []
        for number in range(3):
            claim = await claims.settle(
                await claims.claim("p-cov", f"op-{number}", "digest"), ids.sandbox_on("n-a")
            )
            covered = await claims.covered(claim, cover)
            assert covered is not None
            assert await claims.covered(claim, None) is None
            made.append(covered)
        expected = [(claim.sandbox, cover) for claim in made]
        assert await claims.covers("p-cov", 0) == expected
        assert await claims.covers("p-cov", made[1].revision) == expected[1:]
        assert await claims.covers("p-other", 0) == []
        assert await claims.get("p-cov", "op-2") == made[2]


async def test_bounds_are_remembered_while_iam_is_away_and_never_invented() -> None:
    bus = LocalBus(Hub(), "core")
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        tasks.append(asyncio.create_task(work))

    bounds = Boundaries(bus, spawn)
    limited = Project(project="p-lab", parent=ROOT, quota=Quota(sandboxes=1))

    async def answer(_: Received) -> bytes:
        return ok(Bounds(bounds=[limited]))

    assert bounds.none(ROOT)
    assert not bounds.none("p-lab")
    with pytest.raises(Overloaded):
        await bounds.of("p-lab")
    async with serving_internal(bus, subjects.QUOTA_BOUNDS, answer):
        assert await bounds.of("p-lab") == (limited,)
    await asyncio.sleep(OLD + 0.1)
    assert not bounds.none("p-lab")
    assert await bounds.of("p-lab") == (limited,)
    await asyncio.gather(*tasks, return_exceptions=True)
