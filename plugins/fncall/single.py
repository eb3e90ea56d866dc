"""A call that is no judge: its result as a message."""

from __future__ import annotations

import base64
import os
import signal
from typing import Any, Final

import orjson

from dsec.bus.caller import CallResult, Raised
from dsec.bus.errors import Failure
from dsec.plugins.fncall.runner import Ran
from dsec.plugins.fncall.running import Outcome, Why

ENDED: Final[dict[Why, str]] = {"wall": "timeout", "cpu": "timeout", "output": "output", "oom": "oom"}
DETAIL: Final[dict[Why, str]] = {
    "wall": "it took longer than limits.wall",
    "cpu": "it used more than limits.cpu_time",
    "output": "it printed more than limits.output",
    "oom": "it used more than limits.memory",
}


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def result_of(ran: Ran, *, function: bool) -> CallResult:
    """The result of a program, or of a `function`."""
    outcome = ran.outcome
    fields: dict[str, Any] = {
        "ended": _ended(outcome),
        "failure": Failure.LIMIT if outcome.why else None,
        "detail": detail_of(outcome),
        "code": outcome.code,
        "signal": outcome.signal,
        "stdout": encoded(outcome.stdout),
        "stderr": encoded(outcome.stderr),
        "truncated": outcome.truncated,
        "wall_ms": round(outcome.wall_ms, 3),
        "cpu_ms": round(outcome.usage.cpu_ms, 3),
        "memory": outcome.usage.memory,
        "warm": ran.warm,
    }
    if function and not outcome.why:
        fields |= _returned(ran.result)
    return CallResult(**fields)


def _ended(outcome: Outcome) -> str:
    if outcome.why:
        return ENDED[outcome.why]
    return "signal" if os.WIFSIGNALED(outcome.status) else "exit"


def detail_of(outcome: Outcome) -> str:
    """Why it ended so, for people."""
    if outcome.why:
        return DETAIL[outcome.why]
    if outcome.signal is not None:
        return f"it died of {signal_name(outcome.signal)}"
    return ""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _returned(result: bytes) -> dict[str, Any]:
    """What the function's child told; it is the call's own word, and may be anything or nothing."""
    try:
        told = orjson.loads(result)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(told, dict):
        return {}
    if "value" in told:
        return {"returned": True, "value": told["value"]}
    error = told.get("error")
    if not isinstance(error, dict):
        return {}
    return {"raised": Raised(**{key: str(error.get(key, "")) for key in ("type", "message", "traceback")})}
