"""The verdict is one exactly for the report that an honest run of a right solution gives."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from examples.swe_rollouts.verdict import TESTS_FAILED, Report, canary_ids, judge, parse_report

CANARIES = canary_ids("tests", "test_0123")
OUTCOMES = ("passed", "failed", "skipped", "xfail", "error")
IDS = st.lists(st.text("abc[]:/ ", min_size=1, max_size=6), min_size=1, max_size=8, unique=True)


def honest(expected: list[str]) -> tuple[tuple[str, str], ...]:
    return (*((test, "passed") for test in expected), *((test, "failed") for test in CANARIES))


def reward(expected: list[str], *results: tuple[str, str], code: int | None = TESTS_FAILED) -> int:
    return judge(expected, CANARIES, Report(code, results)).reward


@given(expected=IDS, data=st.data())
def test_every_expected_id_once_and_failing_canaries_are_worth_one_in_any_order(
    expected: list[str], data: st.DataObject
) -> None:
    results = data.draw(st.permutations(honest(expected)))
    assert judge(expected, CANARIES, Report(TESTS_FAILED, tuple(results))).reward == 1


@given(expected=IDS, data=st.data())
def test_a_missing_result_is_worth_nothing(expected: list[str], data: st.DataObject) -> None:
    results = list(honest(expected))
    results.remove(data.draw(st.sampled_from(results)))
    assert reward(expected, *results) == 0


@given(expected=IDS, data=st.data())
def test_a_result_told_twice_is_worth_nothing(expected: list[str], data: st.DataObject) -> None:
    results = honest(expected)
    assert reward(expected, *results, data.draw(st.sampled_from(results))) == 0


@given(expected=IDS, other=st.text(min_size=1, max_size=6), outcome=st.sampled_from(OUTCOMES))
def test_a_result_that_nobody_asked_for_is_worth_nothing(
    expected: list[str], other: str, outcome: str
) -> None:
    assert reward(expected, *honest(expected), (other, outcome)) == 0


@given(expected=IDS, data=st.data(), outcome=st.sampled_from(OUTCOMES[1:]))
def test_an_expected_id_that_failed_skipped_or_xfailed_is_worth_nothing(
    expected: list[str], data: st.DataObject, outcome: str
) -> None:
    changed = data.draw(st.sampled_from(expected))
    results = [(test, outcome if test == changed else how) for test, how in honest(expected)]
    assert reward(expected, *results) == 0


@given(expected=IDS, data=st.data(), outcome=st.sampled_from(["passed", "skipped", "xfail", "error"]))
def test_a_canary_that_does_not_fail_is_worth_nothing(
    expected: list[str], data: st.DataObject, outcome: str
) -> None:
    changed = data.draw(st.sampled_from(CANARIES))
    results = [(test, outcome if test == changed else how) for test, how in honest(expected)]
    assert reward(expected, *results) == 0


@given(code=st.one_of(st.none(), st.integers(-64, 255).filter(lambda code: code != TESTS_FAILED)))
def test_a_process_that_ended_otherwise_is_worth_nothing(code: int | None) -> None:
    assert reward(["a"], *honest(["a"]), code=code) == 0


def test_nothing_expected_is_worth_nothing() -> None:
    assert reward([], *honest([])) == 0


@given(text=st.text())
def test_a_report_that_is_none_is_read_and_worth_nothing(text: str) -> None:
    assert judge(["a"], CANARIES, parse_report(text)).reward == 0


@given(lines=st.lists(st.text(max_size=20), min_size=1))
def test_garbled_lines_beside_honest_ones_are_worth_nothing(lines: list[str]) -> None:
    good = [json.dumps([*result, 0.1]) for result in honest(["a"])]
    report = parse_report(json.dumps({"exit": TESTS_FAILED, "lines": [*good, *lines], "log": ""}))
    assert judge(["a"], CANARIES, report).reward == 0


def test_the_honest_report_as_it_is_printed_is_worth_one() -> None:
    good = [json.dumps([*result, 0.1]) for result in honest(["a"])]
    report = parse_report(json.dumps({"exit": TESTS_FAILED, "lines": good, "log": ""}))
    assert judge(["a"], CANARIES, report).reward == 1


def test_reasons_name_what_was_missing() -> None:
    verdict = judge(["tests/test_a.py::test_b"], [], Report(TESTS_FAILED, ()))
    assert verdict.reasons == ("wanted, but not seen: tests/test_a.py::test_b passed",)
