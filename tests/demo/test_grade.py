"""The grader's program, run on this machine on small made-up projects, honest and not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.swe_rollouts import cheating, material
from examples.swe_rollouts.verdict import CANARY_SOURCE, Report, canary_ids, judge, parse_report

TESTS = """\
import pytest
import thing


def test_right():
    assert thing.answer() == 42


def test_other():
    pass


@pytest.mark.xfail
def test_xfail():
    assert False


def test_skip():
    pytest.skip()


@pytest.fixture
def falls():
    yield
    assert False


def test_teardown(falls):
    pass
"""
EXPECTED = ["tests/test_thing.py::test_right", "tests/test_thing.py::test_other"]
CANARIES = canary_ids("tests", "test_canary")

Grade = Callable[..., Report]


@pytest.fixture(scope="module")
def grader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    material.ensure()
    return material.grader(tmp_path_factory.mktemp("grader"))


@pytest.fixture
def grade(grader: Path, tmp_path: Path) -> Grade:
    def run(source: str, *tests: str, timeout: float = 30.0) -> Report:
        root = tmp_path / "project"
        for path, text in {
            "thing/__init__.py": source,
            "tests/__init__.py": "",
            "tests/test_thing.py": TESTS,
            "tests/test_canary.py": CANARY_SOURCE.format(package="thing"),
        }.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        request = {"root": str(root), "tests": [*tests], "user": None, "timeout": timeout}
        (tmp_path / "request.json").write_text(json.dumps(request))
        command = [sys.executable, "-I", "-B", str(grader / "grade.py"), str(tmp_path / "request.json")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return parse_report(done.stdout)

    return run


def reward(report: Report) -> int:
    return judge(EXPECTED, CANARIES, report).reward


RIGHT = "def answer():\n    return 42\n"
WRONG = "def answer():\n    return 41\n"


def test_a_right_answer_is_worth_one(grade: Grade) -> None:
    assert reward(grade(RIGHT, *EXPECTED, *CANARIES)) == 1


def test_a_wrong_answer_is_worth_nothing(grade: Grade) -> None:
    assert reward(grade(WRONG, *EXPECTED, *CANARIES)) == 0


def test_xfail_skip_and_a_failing_teardown_are_no_passes(grade: Grade) -> None:
    outcomes = dict(grade(RIGHT, "tests/test_thing.py").results)
    assert {test.rpartition("::")[2]: outcome for test, outcome in outcomes.items()} == {
        "test_right": "passed",
        "test_other": "passed",
        "test_xfail": "xfail",
        "test_skip": "skipped",
        "test_teardown": "failed",
    }


def test_code_that_does_not_import_is_an_error_and_no_result(grade: Grade) -> None:
    report = grade("raise SystemError", *EXPECTED, *CANARIES)
    assert reward(report) == 0
    assert {outcome for _, outcome in report.results} <= {"error"}


def test_code_that_patches_pytest_to_pass_everything_is_worth_nothing(grade: Grade) -> None:
    report = grade(WRONG + cheating.PATCH, *EXPECTED, *CANARIES)
    assert dict(report.results)[EXPECTED[0]] == "passed"
    assert reward(report) == 0


@pytest.mark.parametrize("code", [0, 1, 2])
def test_code_that_leaves_early_is_worth_nothing(grade: Grade, code: int) -> None:
    report = grade(f"import os\ndef answer():\n    os._exit({code})\n", *EXPECTED, *CANARIES)
    assert report.exit == code
    assert reward(report) == 0


def test_code_that_never_ends_is_stopped_and_worth_nothing(grade: Grade) -> None:
    report = grade("while True: pass", *EXPECTED, *CANARIES, timeout=1.0)
    assert report.exit is None
    assert reward(report) == 0


def test_a_process_left_behind_holds_nobody_up(grade: Grade) -> None:
    source = RIGHT + "import subprocess\nsubprocess.Popen(['sleep', '30'], close_fds=False)\n"
    assert reward(grade(source, *EXPECTED, *CANARIES)) == 1


def test_what_the_code_prints_is_not_taken_for_results(grade: Grade) -> None:
    lines = "".join(f"print({json.dumps([test, 'passed', 0])!r})\n" for test in EXPECTED)
    assert reward(grade(WRONG + lines, *EXPECTED, *CANARIES)) == 0


@pytest.mark.xfail(strict=True, reason="no check inside the tests' process can see this: told in verdict.py")
def test_code_that_forges_the_very_report_we_wait_for_is_worth_nothing(grade: Grade) -> None:
    results = [*((test, "passed", 0) for test in EXPECTED), *((test, "failed", 0) for test in CANARIES)]
    lines = "".join(json.dumps(result) + "\n" for result in results).encode()
    source = (
        f"import os, sys\nif len(sys.argv) > 2:\n    os.write(int(sys.argv[2]), {lines!r})\n    os._exit(1)\n"
    )
    assert reward(grade(source, *EXPECTED, *CANARIES)) == 0
