"""The suite of a `Caller` (`bus.caller`), for where a fixture `calls` is a client of a platform that has one.

class TestCalls(CallSuite):
    pass
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dsec.bus.errors import NoCapacity, SpecError, UnknownField, Unsupported
from dsec.sdk import Client
from dsec.sdk.testing.probes import PROBES

SUM = "a, b = map(int, input().split())\nprint(a + b)\n"
SUM_C = '#include <stdio.h>\nint main(void) { int a, b; scanf("%d%d", &a, &b); printf("%d\\n", a + b); }\n'


def doubled(value: Any, *, times: int = 2) -> Any:
    return value * times


class CallSuite:
    """What every caller does, and lets nobody do."""

    @pytest.mark.parametrize("name", PROBES)
    async def test_isolation_holds(self, calls: Client, name: str) -> None:
        assert not await PROBES[name](calls)

    async def test_a_function_gets_json_and_returns_json(self, calls: Client) -> None:
        assert (await calls.call(doubled, [1, "ü"], kwargs={"times": 3})).get() == [1, "ü"] * 3

    async def test_an_exception_is_a_result(self, calls: Client) -> None:
        result = await calls.call("def f():\n    return 1 / 0\n", entry="f")
        assert (result.ended, result.code, result.failure) == ("exit", 1, None)
        assert result.raised is not None
        assert result.raised.type == "ZeroDivisionError"
        assert "line 2" in result.raised.traceback

    async def test_a_program_has_streams_arguments_and_an_exit_code(self, calls: Client) -> None:
        source = "import sys\nprint(sys.argv[1:], sys.stdin.read())\nprint('x', file=sys.stderr)\nsys.exit(3)"
        result = await calls.call(source, argv=["a", "b c"], stdin="in")
        assert (result.code, result.text, result.text_err) == (3, "['a', 'b c'] in\n", "x\n")

    async def test_a_shell_finds_its_files_and_leaves_some(self, calls: Client) -> None:
        result = await calls.call(
            "cat d/in > out; echo $GREETING >> out; exit 4",
            language="sh",
            files={"d/in": b"\x00\xff"},
            env={"GREETING": "hello"},
            outputs=["out", "never"],
        )
        assert (result.code, result.files) == (4, {"out": b"\x00\xffhello\n"})

    async def test_what_is_compiled_once_runs_in_a_later_call(self, calls: Client) -> None:
        compiled = await calls.call(
            "gcc -O1 -o sum main.c", language="sh", files={"main.c": SUM_C}, keep=["sum"], outputs=["sum"]
        )
        artefact = compiled.artefacts["sum"]
        result = await calls.call(
            "./sum", language="exec", files={"sum": artefact}, executable=["sum"], stdin="1 2"
        )
        assert (result.code, result.text) == (0, "3\n")

    @pytest.mark.parametrize(("language", "source"), [("python", SUM), ("c", SUM_C)])
    async def test_a_judge_tells_a_verdict_for_each_case(
        self, calls: Client, language: Any, source: str
    ) -> None:
        cases = [("1 2", "3"), ("2 2", "5"), ("3 4", "7 \n\n")]
        judged = await calls.judge(source, cases, language=language)
        assert [one.verdict for one in judged.cases] == ["AC", "WA", "AC"]
        assert judged.verdict == "WA"

    async def test_limits_end_a_call_and_are_told_as_such(self, calls: Client) -> None:
        spinning, printing = await asyncio.gather(
            calls.call("while True: pass", limits={"wall": 0.4}),
            calls.call("print('x' * 100_000)", limits={"output": 1000}),
        )
        assert (spinning.ended, spinning.failure) == ("timeout", "limit")
        assert (printing.ended, len(printing.stdout), printing.told.truncated) == ("output", 1000, True)

    async def test_a_request_that_makes_no_sense_is_refused(self, calls: Client) -> None:
        with pytest.raises(UnknownField):
            await calls.call("1", limits={"speed": 1})  # type: ignore[typeddict-unknown-key]  # on purpose
        with pytest.raises(SpecError, match="nowhere"):
            await calls.call("1", imports=["nowhere"])
        with pytest.raises((Unsupported, NoCapacity)):
            await calls.call("1", gpu={"mode": "exclusive", "memory": 1 << 50})
