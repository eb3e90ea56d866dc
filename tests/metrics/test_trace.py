"""`traceparent` by the rules of W3C Trace Context, section 3.2, and how it comes from a caller."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsec
from dsec.bus.trace import TRACEPARENT, accepted, fresh, is_valid, trace_id
from dsec.sdk import tracing

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    "value", [GOOD, GOOD[:-2] + "00", "01" + GOOD[2:], "cc" + GOOD[2:] + "-what-the-future-will-be"]
)
def test_a_well_formed_value_is_valid_and_so_is_that_of_a_later_version(value: str) -> None:
    assert is_valid(value)
    assert trace_id(value) == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert accepted({TRACEPARENT: value}) == value


@pytest.mark.parametrize(
    "value",
    [
        "",
        GOOD.upper(),
        GOOD + "-more",  # of version 00 nothing follows
        GOOD + "\n",
        "ff" + GOOD[2:],
        GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        GOOD.replace("00f067aa0ba902b7", "0" * 16),
        GOOD.replace("-", "_"),
        GOOD[:-1],
        "cc" + GOOD[2:] + ".no-dash",
    ],
)
def test_a_malformed_value_is_replaced_by_a_new_trace(value: str) -> None:
    assert not is_valid(value)
    replaced = accepted({TRACEPARENT: value})
    assert is_valid(replaced)
    assert replaced != accepted({TRACEPARENT: value})


@given(st.text(max_size=80))
def test_no_text_makes_it_fail(value: str) -> None:
    assert is_valid(accepted({TRACEPARENT: value}))


def test_without_the_header_there_is_no_trace() -> None:
    assert accepted(None) == accepted({}) == accepted({"Traceparent": GOOD}) == ""
    assert is_valid(fresh())


def test_a_call_belongs_to_the_trace_of_its_block_and_to_none_without() -> None:
    assert tracing.headers(always=False) is None
    with dsec.trace(GOOD) as given_:
        assert tracing.headers(always=True) == {TRACEPARENT: given_} == {TRACEPARENT: GOOD}
        with dsec.trace("nonsense") as inner:
            assert tracing.headers(always=False) == {TRACEPARENT: inner}
            assert is_valid(inner)
        assert tracing.headers(always=False) == {TRACEPARENT: GOOD}
    first, second = tracing.headers(always=True), tracing.headers(always=True)
    assert first
    assert second
    assert first != second


def test_a_current_opentelemetry_span_is_taken_without_importing_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The two functions of opentelemetry-api's `trace` that are used, with the types that it has for them."""
    context = SimpleNamespace(
        is_valid=True, trace_id=int(GOOD[3:35], 16), span_id=int(GOOD[36:52], 16), trace_flags=1
    )
    module = SimpleNamespace(get_current_span=lambda: SimpleNamespace(get_span_context=lambda: context))
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", module)
    assert tracing.headers(always=False) == {TRACEPARENT: GOOD}
    context.is_valid = False
    assert tracing.headers(always=False) is None
