"""The expected ids in the repository are what a recount on this machine finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.swe_rollouts.recount import choose, even, recount
from examples.swe_rollouts.tasks import TASKS, load_expected

RESULT = st.tuples(
    st.sampled_from(["passed", "failed", "skipped", "xfail", "error"]), st.floats(0, 0.1, allow_nan=False)
)
RESULTS = st.dictionaries(st.text("abc", min_size=1, max_size=3), RESULT, max_size=20)


@pytest.mark.parametrize("name", ["wcwidth", "jmespath"])
def test_a_recount_of_a_quick_suite_finds_the_ids_that_are_kept(name: str) -> None:
    found, kept = recount(TASKS[name]).expected, load_expected(TASKS[name])
    assert found.solved == kept.solved
    assert found.all == kept.all


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["sqlparse", "more-itertools", "parso"])
def test_a_recount_of_a_long_suite_finds_the_ids_that_a_solution_makes_pass(name: str) -> None:
    assert recount(TASKS[name]).expected.solved == load_expected(TASKS[name]).solved


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_ids_of_both_kinds_and_none_twice(name: str) -> None:
    expected = load_expected(TASKS[name])
    assert expected.solved < set(expected.all)
    assert len(set(expected.all)) == len(expected.all)
    assert all(test.startswith(f"{TASKS[name].tests}/") for test in expected.all)


@given(before=RESULTS, after=RESULTS, most=st.integers(1, 10))
def test_solved_ids_newly_pass_and_kept_ones_pass_both_times(
    before: dict[str, tuple[str, float]], after: dict[str, tuple[str, float]], most: int
) -> None:
    expected = choose(before, after, most).expected
    assert all(after[test][0] == "passed" for test in expected.all)
    assert all(before.get(test, ("",))[0] != "passed" for test in expected.solved)
    assert all(before[test][0] == "passed" for test in expected.kept)
    assert len(expected.kept) <= most
    newly = {
        test for test, one in after.items() if one[0] == "passed" and before.get(test, ("",))[0] != "passed"
    }
    assert expected.solved == newly


@given(items=st.lists(st.integers(), unique=True), most=st.integers(0, 30))
def test_an_even_choice_keeps_order_and_has_as_many_as_it_may(items: list[int], most: int) -> None:
    chosen = even([str(item) for item in items], most)
    assert len(chosen) == min(len(items), most)
    assert list(chosen) == [str(item) for item in items if str(item) in set(chosen)]
