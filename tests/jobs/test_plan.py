"""The plan of a batch: nothing is lost or doubled, whatever nodes answer and whenever a core takes over."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus import ids
from dsec.bus.core.jobs.execute import SLICE, slices
from dsec.bus.core.jobs.messages import Batch, CreateBatch, Failures, NodeBatchAnswer, Phase
from dsec.bus.core.jobs.plan import Plan, Status
from dsec.bus.core.jobs.runs import numbers_of, runs_of, size_of
from dsec.bus.core.jobs.template import digest, overridden, parse_batch
from dsec.bus.errors import Cancelled, NoCapacity, SpecError

COUNT = 40
NODES = ["n-a", "n-b", "n-c"]


def batch(count: int = COUNT) -> Batch:
    return Batch(project="p-a", principal="u-a", job="j-a", op="op", count=count)


@given(st.lists(st.integers(0, 200)))
def test_runs_hold_exactly_their_numbers(numbers: list[int]) -> None:
    runs = runs_of(numbers)
    assert list(numbers_of(runs)) == sorted(set(numbers))
    assert size_of(runs) == len(set(numbers))
    assert all(stop < start for (_, stop), (start, _) in pairwise(runs))


Answers = st.lists(
    st.tuples(
        st.sampled_from(["assign", "run", "veto", "fail", "lose", "take over", "cancel"]),
        st.sets(st.integers(0, COUNT - 1)),
        st.sampled_from(NODES),
    ),
    max_size=25,
)


@given(Answers)
def test_each_number_is_in_one_status_and_what_is_settled_stays(
    steps: list[tuple[str, set[int], str]],
) -> None:
    state = batch()
    plan = Plan(state)
    settled: dict[int, Status] = {}
    for what, numbers, node in steps:
        asked = [number for number in plan.unsettled().get(node, ()) if number in numbers]
        runs = runs_of(asked)
        match what:
            case "assign":
                plan.assign([n for n in plan.numbers(Status.UNPLACED) if n in numbers], node)
            case "run":
                plan.fold(asked, NodeBatchAnswer(running=runs, vetoed=[], failed=[]), final=False)
            case "veto":
                final = state.phase is not Phase.PLACING
                plan.fold(asked, NodeBatchAnswer(running=[], vetoed=runs, failed=[]), final=final)
            case "fail":
                failed = [Failures(error=SpecError(f"no {node}").body(), runs=runs)]
                plan.fold(asked, NodeBatchAnswer(running=[], vetoed=[], failed=failed), final=False)
            case "lose":
                plan.fail(asked, NoCapacity("lost"))
            case "cancel":
                plan.fail(plan.numbers(Status.UNPLACED), Cancelled("cancelled"))
            case "take over":
                plan = Plan(Batch.model_validate_json(state.model_dump_json()))
        former, state = state.phase, plan.state(state)
        order = [Phase.PLACING, Phase.PLACED, Phase.DONE]
        assert order.index(state.phase) >= order.index(former)
        for number in plan.numbers(Status.RUNNING, Status.FAILED):
            status = Status.RUNNING if number in set(numbers_of(state.running)) else Status.FAILED
            assert settled.setdefault(number, status) is status
        assert sum(len(plan.numbers(status)) for status in Status) == COUNT
        assert set(settled) == set(plan.numbers(Status.RUNNING, Status.FAILED))
        places = [number for start, stop, _ in state.placed for number in range(start, stop)]
        assert len(places) == len(set(places))
        assert (state.phase is Phase.DONE) == (len(settled) == COUNT)


def test_many_different_failures_are_told_by_kinds() -> None:
    plan = Plan(batch(1000))
    plan.assign(range(1000), "n-a")
    failed = [Failures(error=SpecError(f"sandbox {n}").body(), runs=[(n, n + 1)]) for n in range(1000)]
    plan.fold(range(1000), NodeBatchAnswer(running=[], vetoed=[], failed=failed), final=False)
    state = plan.state(batch(1000))
    assert len(state.failed) == 64
    assert sum(size_of(one.runs) for one in state.failed) == 1000


def test_a_batch_scattered_over_many_nodes_fits_one_message() -> None:
    plan = Plan(batch(32_000))
    for number in range(32_000):
        plan.assign([number], f"n-{'long-node-name' * 3}-{number % 200}")
    assert len(plan.state(batch(32_000)).model_dump_json()) < 800_000


@given(st.dictionaries(st.integers(0, 2000), st.integers(0, 200_000), max_size=20))
def test_orders_fit_a_message_and_leave_no_number_out(sizes: dict[int, int]) -> None:
    overrides = {number: {"user": "x" * size} for number, size in sizes.items()}
    parts = list(slices(list(range(2001)), overrides))
    assert [number for part in parts for number in part] == list(range(2001))
    for part in parts:
        assert len(part) <= SLICE
        assert len(part) == 1 or sum(sizes.get(number, 0) for number in part) < 600_000


def test_ids_follow_from_project_operation_number_and_node() -> None:
    names = {
        ids.sandbox_of(node, project, op, number)
        for node in NODES
        for project in ("p-a", "p-b")
        for op in ("one", "two")
        for number in range(10)
    }
    assert len(names) == 120
    assert {ids.node_of(name) for name in names} == set(NODES)
    longest = ids.operation_of("x" * 64, 31_999)
    assert ids.check("operation", longest) == longest


def test_an_override_replaces_and_merges() -> None:
    template = {"image": {"base": "a"}, "env": {"A": "1"}, "limits": {"cpu": 1, "memory": 2}, "ttl": 5}
    override = {"image": "b", "env": {"B": "2"}, "limits": {"cpu": 3}}
    assert overridden(template, override) == {
        "image": "b",
        "env": {"A": "1", "B": "2"},
        "limits": {"cpu": 3, "memory": 2},
        "ttl": 5,
    }
    assert template["env"] == {"A": "1"}


async def test_a_digest_tells_requests_apart() -> None:
    def asked(**changes: object) -> CreateBatch:
        body = {"op": "op", "deadline": 0, "spec": {"image": "a"}, "count": 3} | changes
        return CreateBatch.model_validate(body)

    requests = [
        asked(),
        asked(count=4),
        asked(spec={"image": "b"}),
        asked(overrides={1: {"ttl": 5}}),
        asked(overrides={2: {"ttl": 5}}),
    ]
    digests = {digest("u-a", one, await parse_batch(one, "j-a")) for one in requests}
    digests.add(digest("u-b", requests[0], await parse_batch(requests[0], "j-a")))
    assert len(digests) == 6
    with pytest.raises(SpecError):
        await parse_batch(asked(spec={"image": "a", "job": "j-b"}), "j-a")
