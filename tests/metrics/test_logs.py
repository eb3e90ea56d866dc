"""A log line tells the operation that it is about, and nothing that a caller wrote into it."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus import operation
from dsec.bus.frames import pack_data
from dsec.bus.logs import JsonFormatter, TextFormatter
from dsec.bus.transport import Received

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def fields(message: Received) -> dict[str, Any]:
    """What is told in the task that works on `message`."""

    async def work() -> dict[str, Any]:
        operation.enter(message)
        return operation.fields()

    return asyncio.run(work())


def line(message: str, formatter: logging.Formatter, **more: Any) -> str:
    record = logging.LogRecord("dsec.x", logging.INFO, __file__, 1, message, (), more.get("exc_info"))
    return formatter.format(record)


def test_a_tenants_request_is_told_by_its_subject_and_its_operation() -> None:
    body = orjson.dumps(
        {"op": "abc", "project": "p-other", "order": {"project": "p-other"}, "sandbox": "s-x-1"}
    )
    asked = Received("exec.start.p-a.u-ann.n-x.s-x-abcdefghijklmnop", "", body, {"traceparent": TRACE})
    assert fields(asked) == {
        "op": "abc",
        "project": "p-a",
        "principal": "u-ann",
        "node": "n-x",
        "sandbox": "s-x-abcdefghijklmnop",
        "trace": TRACE[3:35],
    }


def test_a_raw_request_and_a_large_one_are_told_alike() -> None:
    subject = "file.write.p-a.u-ann.n-x.s-x-abcdefghijklmnop"
    small = Received(subject, "", pack_data(b'{"op":"abc"}', b"x"))
    large = Received(subject, "", pack_data(b'{"op":"abc"}', b"x" * 100_000))
    assert fields(small)["op"] == "abc"
    assert fields(large) == fields(small)
    order = {"v": 1, "op": "abc", "project": "p-a", "principal": "u-ann", "env": {"X": "y" * 10_000}}
    short = {name: order[name] for name in ("op", "project", "principal")}
    assert fields(Received("node.create.n-x", "", orjson.dumps(order))) == short
    asked = {"op": "abc", "project": "p-other", "stdin": "x" * 10_000}
    assert fields(Received("sandbox.create.p-a.u-ann", "", orjson.dumps(asked)))["project"] == "p-a"


def test_orders_vetoes_and_questions_of_the_platform_are_told_by_their_bodies() -> None:
    order = {
        "op": "abc",
        "project": "p-a",
        "principal": "u-ann",
        "sandbox": "s-x-1",
        "secrets": {"op": "hunter2"},
    }
    told = {"op": "abc", "project": "p-a", "principal": "u-ann", "sandbox": "s-x-1"}
    assert fields(Received("node.create.n-x", "", orjson.dumps(order))) == told
    assert fields(Received("sched.veto", "", orjson.dumps({"order": order, "reply": "r"}))) == told
    one = orjson.dumps({"backend": "sim", "ops": ["abc"], "traces": {"abc": TRACE}})
    assert fields(Received("sched.place", "", one)) == {"op": "abc", "trace": TRACE[3:35]}
    assert fields(Received("sched.place", "", orjson.dumps({"ops": ["a", "b"]}))) == {"ops": ["a", "b"]}
    assert fields(Received("driver.inspect.n-x.y", "", b"{}", {"Dsec-Op": "abc"})) == {"op": "abc"}


@given(JSON, st.sampled_from(["sandbox.create.p-a.u-ann", "log.fetch.p-a.u-ann", "no.such"]))
def test_no_body_of_a_tenant_breaks_a_line(body: object, subject: str) -> None:
    told = fields(Received(subject, "", orjson.dumps(body)))
    assert set(told) <= {"op", "project", "principal", "sandbox", "node", "exec", "job"}


@given(st.binary(max_size=40))
def test_neither_do_bytes(body: bytes) -> None:
    assert "project" in fields(Received("sandbox.create.p-a.u-ann", "", body))


def test_tasks_inherit_the_operation_and_a_block_names_another() -> None:
    async def work() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, str] | None]:
        operation.enter(Received("sandbox.create.p-a.u-ann", "", b'{"op":"abc"}', {"traceparent": TRACE}))

        async def child() -> dict[str, Any]:
            return operation.fields()

        inherited = await asyncio.create_task(child())
        with operation.about("", op="other"):
            other = operation.fields()
        return inherited, other, operation.fields(), operation.carried()

    inherited, other, after, carried = asyncio.run(work())
    assert inherited == after
    assert after["op"] == "abc"
    assert other == {"op": "other"}
    assert carried == {"traceparent": TRACE, "Dsec-Op": "abc"}
    assert operation.fields() == {}
    assert operation.onward() is None


def test_json_is_one_object_a_line_with_the_exception_in_one_field() -> None:
    try:
        raise ValueError("of two\nlines")
    except ValueError:
        text = line('it "failed"\nbadly', JsonFormatter(), exc_info=sys.exc_info())
    assert "\n" not in text
    told = orjson.loads(text)
    assert (told["level"], told["logger"], told["message"]) == ("info", "dsec.x", 'it "failed"\nbadly')
    assert told["exception"].startswith("Traceback")
    assert told["exception"].endswith("lines")


def test_text_tells_the_operation_behind_the_message_and_forges_no_line() -> None:
    formatter = TextFormatter("%(levelname)s %(name)s: %(message)s")
    with operation.about(TRACE, op="abc"):
        text = line("first\nERROR dsec: second", formatter)
    assert text == f"INFO dsec.x: first\\nERROR dsec: second [op=abc trace={TRACE[3:35]}]"
