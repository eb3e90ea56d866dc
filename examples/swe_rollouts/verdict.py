"""The reward of a rollout, decided outside every sandbox, from what the grading sandbox reported.

The code under test runs in the process that reports, so its word alone is not believed. A reward needs
every expected id reported passed, once; nothing else reported but the canaries; and the canaries, tests
that fail whatever the code does, reported failed, once each, with the exit code that failures give. A
patch that makes pytest pass everything, report nothing, or leave early thereby shows itself.

What remains: code that rewrites the results of just the expected ids and spares the canaries, whose names
are drawn anew for each grading, but can be guessed by their content. Nothing inside one process can
rule that out; the guard's solve phase and review of the patch itself are for that.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TESTS_FAILED = 1
"""pytest's exit code for "all collected tests ran, and some failed"."""

CANARIES = ("test_false", "test_raises", "TestCase::test_differs")
CANARY_SOURCE = """\
import unittest
import {package}


def test_false():
    assert not {package}


def test_raises():
    raise RuntimeError("the grader's own")


class TestCase(unittest.TestCase):
    def test_differs(self):
        self.assertEqual({package}, None)
"""


@dataclass(frozen=True, slots=True)
class Report:
    """How the process with the tests ended (None: it was stopped), and each result as it came."""

    exit: int | None
    results: tuple[tuple[str, str], ...]
    garbled: int = 0
    log: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reward` is 1 or 0; `reasons`, empty for 1, tell a person why not."""

    reward: int
    reasons: tuple[str, ...]


def canary_ids(tests: str, module: str) -> tuple[str, ...]:
    return tuple(f"{tests}/{module}.py::{name}" for name in CANARIES)


def parse_report(text: str) -> Report:
    """The answer of `inside/grade.py`; anything else is a report of nothing, so that it earns nothing."""
    try:
        data = json.loads(text)
        code, lines, log = data["exit"], list(data["lines"]), str(data["log"])
    except (ValueError, KeyError, TypeError):
        return Report(None, (), garbled=1, log=text[:2000])
    results = [_result(line) for line in lines]
    good = tuple(one for one in results if one is not None)
    return Report(code if isinstance(code, int) else None, good, len(results) - len(good), log)


def _result(line: object) -> tuple[str, str] | None:
    try:
        test, outcome, _seconds = json.loads(str(line))
    except (ValueError, TypeError):
        return None
    return str(test), str(outcome)


def judge(expected: Iterable[str], canaries: Iterable[str], report: Report) -> Verdict:
    """1 if and only if the report is exactly what an honest run of a right solution gives."""
    wanted = Counter(
        [(test, "passed") for test in set(expected)] + [(test, "failed") for test in set(canaries)]
    )
    seen = Counter(report.results)
    reasons = [
        *_told("wanted, but not seen", wanted - seen),
        *_told("seen, but not wanted", seen - wanted),
        *([f"{report.garbled} lines are no results"] if report.garbled else []),
        *([f"the tests' process ended with {report.exit}"] if report.exit != TESTS_FAILED else []),
        *(["nothing was expected"] if not set(expected) else []),
    ]
    return Verdict(int(not reasons), tuple(reasons))


def _told(what: str, difference: Counter[tuple[str, str]], most: int = 3) -> Sequence[str]:
    shown = [f"{what}: {test} {outcome}" for test, outcome in sorted(difference)[:most]]
    more = len(difference) - len(shown)
    return [*shown, f"{what}: {more} more"] if more > 0 else shown
