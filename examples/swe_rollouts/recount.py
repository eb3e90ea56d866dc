"""Count again which tests tell a solved task from an unsolved one, on this machine, and keep the answer.

`python -m examples.swe_rollouts.recount` runs every suite on the older sources and on the patched ones,
with the very program that grades in a sandbox, and writes `expected/*.json`. A suite has hundreds of tests
that pass both times; an even sample of at most `KEPT` quick ones is kept, so that a rollout takes a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsec.bus.errors import InfraError

from . import material
from .tasks import EXPECTED, TASKS, Expected, Task
from .verdict import Report, parse_report

KEPT = 40
SLOW = 0.05
"""Seconds; a test that takes longer, or sleeps, may fail for want of time beside 80 others."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A task's tree on this machine, with the grader beside it."""

    task: Task
    root: Path
    grader: Path

    def solve(self, patch: Mapping[str, bytes]) -> None:
        for path, data in patch.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_bytes(data)

    def run(self, tests: Sequence[str]) -> Report:
        return parse_report(self.raw(tests))

    def raw(self, tests: Sequence[str]) -> str:
        request = {"root": str(self.root), "tests": list(tests), "user": None, "timeout": 300}
        path = self.grader / "request.json"
        path.write_text(json.dumps(request))
        command = [sys.executable, "-I", "-B", str(self.grader / "grade.py"), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        if done.returncode:
            raise InfraError(f"the grader failed on {self.task.name}: {done.stderr[-800:]}")
        return done.stdout


@contextmanager
def bench(task: Task) -> Iterator[Bench]:
    """The unsolved task, in a directory that is gone afterwards."""
    material.ensure([task])
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(os.path.realpath(scratch))
        yield Bench(task, material.workspace(task, top / task.name), material.grader(top))


@dataclass(frozen=True, slots=True)
class Count:
    """The ids to expect; `found`: how many pass both times in all."""

    expected: Expected
    found: int


def recount(task: Task) -> Count:
    """Run the whole suite before and after the patch, then the choice alone, before and after.

    Raises InfraError if the choice by itself does not come out as it did within the suite.
    """
    with bench(task) as place:
        before = outcomes(place.raw([task.tests]))
        place.solve(material.patch(task))
        after = outcomes(place.raw([task.tests]))
    count = choose(before, after)
    check(task, count.expected)
    return count


def outcomes(raw: str) -> dict[str, tuple[str, float]]:
    """Test id -> outcome and seconds, from the grader's answer."""
    return {test: (outcome, seconds) for test, outcome, seconds in map(json.loads, json.loads(raw)["lines"])}


def choose(
    before: Mapping[str, tuple[str, float]], after: Mapping[str, tuple[str, float]], most: int = KEPT
) -> Count:
    """Pure: every id that newly passes, and at most `most` of the quick ones that pass both times."""
    passing = [test for test, (outcome, _) in after.items() if outcome == "passed"]
    solved = frozenset(test for test in passing if before.get(test, ("missing", 0.0))[0] != "passed")
    both = [test for test in passing if test not in solved]
    quick = [test for test in both if max(before[test][1], after[test][1]) < SLOW]
    wanted = solved.union(even(quick, most))
    return Count(Expected(tuple(test for test in passing if test in wanted), solved), len(both))


def even(items: Sequence[str], most: int) -> tuple[str, ...]:
    """At most `most` items, evenly spaced from the first to the last."""
    count = min(len(items), most)
    return tuple(items[index * len(items) // count] for index in range(count))


def check(task: Task, expected: Expected) -> None:
    with bench(task) as place:
        before = passed(place.run(expected.all))
        place.solve(material.patch(task))
        after = passed(place.run(expected.all))
    if wrong := sorted((before ^ expected.kept) | (after ^ set(expected.all))):
        raise InfraError(f"{task.name}: these come out otherwise when run alone: {wrong[:5]}")


def passed(report: Report) -> set[str]:
    return {test for test, outcome in report.results if outcome == "passed"}


def to_json(task: Task, count: Count) -> dict[str, Any]:
    return {
        "task": task.name,
        "older": task.older.stem,
        "newer": task.newer.stem,
        "python": ".".join(map(str, sys.version_info[:2])),
        "pass_to_pass_found": count.found,
        "fail_to_pass": [test for test in count.expected.all if test in count.expected.solved],
        "tests": count.expected.all,
    }


def main(names: Sequence[str]) -> None:
    for name in names or tuple(TASKS):
        task = TASKS[name]
        count = recount(task)
        path = EXPECTED / f"{name}.json"
        path.write_text(json.dumps(to_json(task, count), indent=1) + "\n")
        print(
            f"{name}: {len(count.expected.solved)} fail before and pass after, {count.found} pass both times"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
