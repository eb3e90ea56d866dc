"""Judging: every verdict, limits of single cases, checkers that are programs, what programs cannot see."""

from __future__ import annotations

import pytest

from dsec.bus.errors import SpecError
from dsec.sdk.testing.calls import SUM, SUM_C
from tests.fncall.conftest import Calls

pytestmark = pytest.mark.node
ECHO = "import sys\nsys.stdout.write(sys.stdin.read())\n"


async def test_every_verdict_is_told_with_its_reason(call: Calls) -> None:
    source = """
import os, sys, time
what = input()
if what == "wrong": print("no")
if what == "slow": time.sleep(60)
if what == "busy":
    while True: pass
if what == "large": print(len(bytearray(1 << 30)))
if what == "dies": os.kill(os.getpid(), 11)
if what == "raises": sys.exit("a reason")
if what == "prints": print("x" * 1_000_000)
print("yes")
"""
    wanted = {
        "right": "AC",
        "wrong": "WA",
        "slow": "TLE",
        "busy": "TLE",
        "large": "MLE",
        "dies": "RE",
        "raises": "RE",
        "prints": "OLE",
    }
    cases = [{"stdin": what, "expected": "yes", "wall": 1.0 if what == "slow" else 10} for what in wanted]
    limits = {"cpu_time": 0.5, "memory": 64 << 20}
    done = await call.judge(source, cases, limits=limits)
    assert dict(zip(wanted, (one.verdict for one in done.cases), strict=True)) == wanted
    by = dict(zip(wanted, done.cases, strict=True))
    assert "SIGSEGV" in by["dies"].detail
    assert "a reason" in by["raises"].detail
    assert "line 1: 'no'" in by["wrong"].detail
    assert by["slow"].wall_ms < 3000
    assert by["busy"].cpu_ms < 1500


async def test_seventy_thousand_characters_in_time_are_no_time_out(call: Calls) -> None:
    """SandboxFusion#67, verl#3478: a pipe that nobody reads makes a program late."""
    source = "print('x' * 70_000)\nimport sys; print('y' * 70_000, file=sys.stderr)\n"
    limits = {"wall": 10, "output": 128 << 10}
    done = await call.judge(source, [{"expected": "x" * 70_000}] * 20, limits=limits)
    assert [one.verdict for one in done.cases] == ["AC"] * 20


async def test_what_does_not_compile_has_no_cases(call: Calls) -> None:
    done = await call.judge("int main(void) { return undeclared; }", [{"stdin": ""}], language="c")
    assert (done.verdict, done.cases) == ("CE", ())
    assert done.compiled is not None
    assert "undeclared" in done.compiled.log


async def test_the_same_source_is_compiled_once(call: Calls) -> None:
    source = SUM_C + "/* once */"
    first = await call.judge(source, [{"stdin": "1 2", "expected": "3"}], language="c")
    again = await call.judge(source, [{"stdin": "1 3", "expected": "4"}], language="c")
    assert first.compiled is not None
    assert again.compiled is not None
    assert (first.compiled.cached, again.compiled.cached, again.verdict) == (False, True, "AC")


async def test_a_judge_may_end_with_the_first_case_that_fails(call: Calls) -> None:
    cases = [{"stdin": f"{n} 1", "expected": str(n + 1 + (n == 3))} for n in range(40)]
    done = await call.judge(SUM, cases, all_cases=False)
    assert [one.verdict for one in done.cases] == ["AC", "AC", "AC", "WA"]


async def test_words_and_numbers_can_be_compared_loosely(call: Calls) -> None:
    cases = [{"stdin": "0.30000001  7", "expected": "0.3 7"}]
    assert (await call.judge(ECHO, cases)).verdict == "WA"
    assert (await call.judge(ECHO, cases, checker={"kind": "floats", "tolerance": 1e-6})).verdict == "AC"
    assert (await call.judge(ECHO, cases, checker={"kind": "tokens"})).verdict == "WA"


@pytest.mark.parametrize("language", ["python", "c"])
async def test_a_checker_can_be_a_program(call: Calls, language: str) -> None:
    source = {
        "python": "import sys\nif len(open('output').read()) != int(open('input').read()): "
        "print('too short'); sys.exit(43)\nsys.exit(42)\n",
        "c": '#include <stdio.h>\nint main(void) { int n, c, m = 0; FILE *f = fopen("input", "r");'
        'if (fscanf(f, "%d", &n) != 1) return 3; f = fopen("output", "r");'
        'while ((c = fgetc(f)) != EOF) m++; if (m != n) puts("too short"); return m == n ? 42 : 43; }',
    }[language]
    checker = {"kind": "program", "language": language, "source": source}
    cases = [{"stdin": str(n), "expected": ""} for n in (3, 4)]
    done = await call.judge("print('abc', end='')", cases, checker=checker)
    assert [(one.verdict, one.detail) for one in done.cases] == [("AC", ""), ("WA", "too short")]


async def test_a_checker_that_fails_is_no_verdict(call: Calls) -> None:
    checker = {"kind": "program", "source": "raise RuntimeError('checker is broken')"}
    with pytest.raises(SpecError, match="checker is broken"):
        await call.judge(ECHO, [{"stdin": "", "expected": ""}], checker=checker)
    with pytest.raises(SpecError, match="does not compile"):
        await call.judge(
            ECHO,
            [{"stdin": "", "expected": ""}],
            checker={"kind": "program", "language": "c", "source": "int"},
        )


async def test_the_program_cannot_see_what_is_expected_of_it(call: Calls) -> None:
    """Nor where it is compared, nor the source of the checker."""
    source = """
import os
seen = []
for top in ("/tmp", "/dev/shm", "/proc/self/fd", "/proc/self/environ", "/proc/1/fd"):
    for place, _, files in os.walk(top) if os.path.isdir(top) else [("/", [], [top])]:
        for name in files:
            try:
                seen.append(open(os.path.join(place, name), errors="replace").read(100_000))
            except OSError:
                pass
print("secret" + "-answer" in "".join(seen))
"""
    cases = [{"stdin": "in", "expected": "secret-answer"}] * 3
    done = await call.judge(source, cases)
    assert {one.detail for one in done.cases} == {"line 1: 'False', expected 'secret-answer'"}
