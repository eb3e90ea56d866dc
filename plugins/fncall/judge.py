"""Judging: one program, many inputs, each run in a box of its own with limits of its own, each output
checked.

Verdicts as contests name them: AC accepted, WA wrong answer, TLE time limit, MLE memory limit, RE run-time
error (an exit code other than 0, or a signal), OLE output limit, CE compilation error. The expected outputs
never enter the box of the program.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Final

from dsec.bus.caller import CallLimits, CallResult, CallSpec, Case, CaseResult, Checker, Verdict
from dsec.bus.errors import SpecError
from dsec.plugins.fncall import checkers
from dsec.plugins.fncall.programs import Program
from dsec.plugins.fncall.runner import Ran
from dsec.plugins.fncall.running import Outcome, Why
from dsec.plugins.fncall.single import detail_of

BY_LIMIT: Final[dict[Why, Verdict]] = {"wall": "TLE", "cpu": "TLE", "output": "OLE", "oom": "MLE"}
ACCEPTS, REFUSES = 42, 43
"""Exit codes of a checker: those of output validators in the Kattis problem package format, since a program
that fails ends with 1."""
CHECKING: Final = CallLimits(output=4096)
Run = Callable[[Program, CallLimits, bytes], Awaitable[Ran]]
"""Runs a program with limits and an input, in a box of its own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Judging:
    """`check`: the checker's own program, if it is one; `at_once`: cases that run at a time."""

    spec: CallSpec
    program: Program
    check: Program | None
    run: Run
    at_once: int

    async def result(self) -> CallResult:
        """All verdicts, in the order of the cases. Raises as `run`, and SpecError when the checker fails."""
        judge = self.spec.judge
        assert judge is not None
        results: list[CaseResult | None] = [None] * len(judge.cases)
        numbers = iter(range(len(judge.cases)))

        async def work() -> None:
            for number in numbers:
                if not judge.all_cases and any(one is not None and one.verdict != "AC" for one in results):
                    return
                results[number] = await self._case(judge.cases[number])

        await _together([work() for _ in range(min(self.at_once, len(judge.cases)))])
        return summary(_until_failed(results, everything=judge.all_cases))

    async def _case(self, case: Case) -> CaseResult:
        stdin = decoded(case.stdin, "judge.cases.stdin")
        outcome = (await self.run(self.program, limits_of(self.spec.limits, case), stdin)).outcome
        verdict, detail = await self._verdict(case, stdin, outcome)
        return CaseResult(
            verdict=verdict,
            detail=detail,
            wall_ms=round(outcome.wall_ms, 3),
            cpu_ms=round(outcome.usage.cpu_ms, 3),
            memory=outcome.usage.memory,
            code=outcome.code,
            signal=outcome.signal,
        )

    async def _verdict(self, case: Case, stdin: bytes, outcome: Outcome) -> tuple[Verdict, str]:
        if outcome.why:
            return BY_LIMIT[outcome.why], detail_of(outcome)
        if outcome.code != 0:
            told = detail_of(outcome) or f"it ended with {outcome.code}"
            last = outcome.stderr[-300:].decode(errors="replace").strip()
            return "RE", f"{told}: {last}" if last else told
        if case.expected is None:
            return "AC", ""
        expected = decoded(case.expected, "judge.cases.expected")
        assert self.spec.judge is not None
        if self.check is None:
            wrong = checkers.difference(self.spec.judge.checker, outcome.stdout, expected)
        else:
            wrong = await self._asked(self.check, stdin, outcome.stdout, expected)
        return ("WA", wrong) if wrong else ("AC", "")

    async def _asked(self, check: Program, stdin: bytes, output: bytes, expected: bytes) -> str:
        """The word of the checker's own program: empty when it accepts."""
        assert self.spec.judge is not None
        given = {"input": (stdin, 0o644), "output": (output, 0o644), "expected": (expected, 0o644)}
        program = dataclasses.replace(check, files={**check.files, **given})
        limits = CHECKING.model_copy(update={"wall": self.spec.judge.checker.wall})
        outcome = (await self.run(program, limits, b"")).outcome
        if not outcome.why and outcome.code in {ACCEPTS, REFUSES}:
            said = outcome.stdout.decode(errors="replace").strip() or "the checker refuses it"
            return said if outcome.code == REFUSES else ""
        told = detail_of(outcome) or f"it ended with {outcome.code}"
        last = outcome.stderr[-300:].decode(errors="replace").strip()
        raise SpecError(f"the checker failed: {told} {last}".strip(), field="judge.checker")


async def _together(work: list[Awaitable[None]]) -> None:
    """All of it; the first error ends the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)  # type: ignore[arg-type]  # coroutines, seen as awaitables
    except* Exception as errors:  # noqa: BLE001 - raised again, alone
        first = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]  # type: ignore[assignment]  # narrowed by the loop
        raise first from None


def limits_of(limits: CallLimits, case: Case) -> CallLimits:
    """Those of one case."""
    asked = case.model_dump(include={"wall", "cpu_time", "memory"}, exclude_none=True)
    return limits.model_copy(update=asked) if asked else limits


def _until_failed(results: list[CaseResult | None], *, everything: bool) -> list[CaseResult]:
    """Cases run some at a time; unless all are wanted, those behind the first that failed are not told."""
    done = [one for one in results if one is not None]
    if everything:
        return done
    failed = next((number for number, one in enumerate(done) if one.verdict != "AC"), len(done))
    return done[: failed + 1]


def summary(results: list[CaseResult]) -> CallResult:
    """The whole judge's verdict is the first that is not AC."""
    first = next((one for one in results if one.verdict != "AC"), None)
    return CallResult(
        ended="exit",
        verdict=first.verdict if first else "AC",
        detail=first.detail if first else "",
        wall_ms=round(sum(one.wall_ms for one in results), 3),
        cpu_ms=round(sum(one.cpu_ms for one in results), 3),
        memory=max((one.memory for one in results if one.memory is not None), default=None),
        cases=tuple(results),
    )


def checker_spec(checker: Checker, spec: CallSpec) -> CallSpec | None:
    """The checker's program as a call in the same image; None when it is none. Raises SpecError."""
    if checker.kind != "program":
        return None
    if not checker.source:
        raise SpecError("a checker that is a program has a source", field="judge.checker.source")
    return CallSpec(language=checker.language, source=checker.source, image=spec.image)


def decoded(text: str, field: str) -> bytes:
    """Raises SpecError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise SpecError(f"{field} is not base64: {error}", field=field) from None
