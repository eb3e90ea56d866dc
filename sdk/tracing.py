"""Which trace a call belongs to: the caller's, if there is one.

    with dsec.trace(traceparent):      # as a web framework or a trainer's own tracing gives it
        await sandbox.run("pytest -q")

In this order: the block's, an OpenTelemetry span that is current, with `Client(trace=True)` a new one for
each call. Without any of these nothing is sent: a header costs each process on the way, and log lines of one
call share its operation id in any case (docs/adr/0018-metrics-logs-traces.md).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

from dsec.bus.trace import TRACEPARENT, fresh, is_valid

_GIVEN: Final[ContextVar[str]] = ContextVar("traceparent", default="")
_OPENTELEMETRY: Final = "opentelemetry.trace"


@contextlib.contextmanager
def trace(traceparent: str | None = None) -> Iterator[str]:
    """All calls of the block, and of tasks started in it, belong to this trace, which is yielded.

    `traceparent`: as in W3C Trace Context; without one, or with a malformed one, a new trace begins.
    """
    chosen = traceparent if traceparent and is_valid(traceparent) else fresh()
    before = _GIVEN.set(chosen)
    try:
        yield chosen
    finally:
        _GIVEN.reset(before)


def headers(*, always: bool) -> dict[str, str] | None:
    """What a call sends; `always`: begin a trace when there is none."""
    chosen = _GIVEN.get() or _of_span() or (fresh() if always else "")
    return {TRACEPARENT: chosen} if chosen else None


def _of_span() -> str:
    """The current OpenTelemetry span, if the program uses that: then it has imported it."""
    opentelemetry = sys.modules.get(_OPENTELEMETRY)
    if opentelemetry is None:
        return ""
    span = opentelemetry.get_current_span().get_span_context()
    if not span.is_valid:
        return ""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags & 0xFF:02x}"
