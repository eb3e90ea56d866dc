"""The operation that is being worked on: what log lines, audits and onward messages tell of it.

`handlers` enters each message in the task that works on it, and tasks started from there inherit it. Entering
costs a reference; the message is only read when something is told.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol

import orjson

from dsec.bus import subjects
from dsec.bus.errors import DsecError
from dsec.bus.frames import unpack_data
from dsec.bus.trace import TRACEPARENT, is_valid, trace_id

OPERATION: Final = "Dsec-Op"
"""Header of messages between parts of the platform whose body has no operation id."""
SMALL: Final = 4096
"""Bytes of a message that tasks may hold on to; of a larger one only what is told is kept."""
NAMED: Final = 16
"""Operations that one line names, when it is about many."""
_IDS: Final = ("op", "project", "principal", "node", "sandbox", "exec", "job")
_HEAD: Final = re.compile(rb'"(op|project|principal|sandbox)":"([A-Za-z0-9_.-]{1,128})"')
_SAFE: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Message(Protocol):
    """`handlers.Call` or `transport.Received`."""

    @property
    def subject(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str] | None: ...


_CURRENT: ContextVar[Message | dict[str, Any] | None] = ContextVar("operation", default=None)


def enter(message: Message) -> None:
    """This task works on `message` from here on."""
    _CURRENT.set(message if len(message.data) <= SMALL else _told(message, _head(message.data)))


@contextlib.contextmanager
def about(traceparent: str = "", **ids: str) -> Iterator[None]:
    """The block is about another operation, named by `ids`: op, project, principal, sandbox…"""
    before = _CURRENT.set({name: value for name, value in ids.items() if value} | {TRACEPARENT: traceparent})
    try:
        yield
    finally:
        _CURRENT.reset(before)


def fields() -> dict[str, Any]:
    """What a log line tells of op, project, principal, node, sandbox, exec, job, trace; what is known."""
    current = _CURRENT.get()
    if current is None:
        return {}
    told = dict(current) if isinstance(current, dict) else _told(current, _body(current.data))
    trace = trace_id(told.pop(TRACEPARENT, ""))
    return told | {"trace": trace} if trace else told


def traceparent() -> str:
    """The trace of the present operation; empty without one."""
    current = _CURRENT.get()
    if current is None:
        return ""
    if isinstance(current, dict):
        return str(current.get(TRACEPARENT, ""))
    return _trace_of(current) if current.headers else ""


def trace() -> str:
    """Its id."""
    return trace_id(traceparent())


def onward() -> dict[str, str] | None:
    """Headers of a message that follows from the present operation; None without a trace."""
    found = traceparent()
    return {TRACEPARENT: found} if found else None


def carried() -> dict[str, str] | None:
    """`onward` with the operation id, for messages whose body has none."""
    op = fields().get("op")
    headers = (onward() or {}) | ({OPERATION: op} if isinstance(op, str) else {})
    return headers or None


def _told(message: Message, body: dict[str, Any]) -> dict[str, Any]:
    """A tenant's ids are those of its subject, which the broker vouches for; its body names the operation.
    The platform's own messages have all of them in the body.
    """
    headers = message.headers or {}
    try:
        address = subjects.parse(message.subject)
    except DsecError:
        found = _internal(body)
    else:
        found = _ids({"op": body.get("op")} | {name: getattr(address, name, "") for name in _IDS[1:]})
    traced = {TRACEPARENT: told} if (told := _trace_of(message)) else {}
    return found | _ids({"op": headers.get(OPERATION)}) | traced


def _trace_of(message: Message) -> str:
    told = message.headers.get(TRACEPARENT, "") if message.headers else ""
    return told if is_valid(told) else ""


def _head(data: bytes) -> dict[str, Any]:
    """The ids at the beginning of a large body, where envelopes have them; reading it all costs too much."""
    return {name.decode(): value.decode() for name, value in _HEAD.findall(data[:512])}


def _body(data: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(data if data[:1] == b"{" else unpack_data(data)[0])
    except (orjson.JSONDecodeError, DsecError):
        return {}
    return body if isinstance(body, dict) else {}


def _internal(body: dict[str, Any]) -> dict[str, Any]:
    """A veto has the ids in its order; a question to the scheduler is about many operations."""
    order, ops = body.get("order"), body.get("ops")
    if isinstance(order, dict):
        return _ids(order)
    if not isinstance(ops, list):
        return _ids(body)
    if len(ops) != 1:
        return {"ops": ops[:NAMED]}
    trace = (body.get("traces") or {}).get(ops[0])
    return _ids({"op": ops[0]}) | ({TRACEPARENT: trace} if trace else {})


def _ids(body: Mapping[str, Any]) -> dict[str, Any]:
    """Only what looks like an id: a line must not say what a caller wrote into it."""
    return {name: value for name in _IDS if _is_id(value := body.get(name))}


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _SAFE.fullmatch(value) is not None
