"""Typed ids, safe as one subject token: `p-…`, `u-…` principal, `n-…`, `s-<node>-…`, `e-…` exec."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Annotated, Final

from pydantic import StringConstraints

from dsec.bus.errors import BadId

_NAME = r"[a-z0-9](?:[a-z0-9_-]{0,46}[a-z0-9])?"
_TAIL = r"[a-z0-9]{4,32}"
PATTERNS: Final = {
    "project": re.compile(rf"p-{_NAME}"),
    "principal": re.compile(rf"u-{_NAME}"),
    "node": re.compile(rf"n-{_NAME}"),
    "sandbox": re.compile(rf"s-(?P<node>{_NAME})-{_TAIL}"),
    "exec": re.compile(rf"e-{_TAIL}"),
    "job": re.compile(rf"j-{_NAME}"),
    "driver": re.compile(r"[a-z][a-z0-9_-]{0,31}"),
    "plugin": re.compile(r"[a-z0-9][a-z0-9_-]{0,127}"),
    "operation": re.compile(r"[A-Za-z0-9_-]{1,64}"),
}

OperationId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""An idempotency key, chosen by the caller; the same key returns the first answer for 24 h."""

_ALPHABET: Final = b"abcdefghijklmnopqrstuvwxyz0123456789"
_LETTERS: Final = bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in range(256))


def driver_on(node: str, name: str) -> str:
    """The identity of the driver `name` of a node: `d-<node>-<name>`. Raises BadId."""
    return f"d-{check('node', node)[2:]}-{check('driver', name)}"


def check(kind: str, value: str) -> str:
    """`value`, if it is an id of `kind` (a key of `PATTERNS`). Raises BadId naming `kind`."""
    if PATTERNS[kind].fullmatch(value) is None:
        raise BadId(f"{value!r} is no {kind} id", field=kind)
    return value


def tail(length: int = 16) -> str:
    """Random tail of an id; 16 characters carry over 80 bits."""
    return secrets.token_bytes(length).translate(_LETTERS).decode()


def new_operation() -> str:
    """A fresh operation id."""
    return tail(24)


def sandbox_on(node: str) -> str:
    """A fresh sandbox id that carries `node`."""
    return f"s-{check('node', node)[2:]}-{tail()}"


def node_of(sandbox: str) -> str:
    """The node that a sandbox id carries. Raises BadId."""
    match = PATTERNS["sandbox"].fullmatch(sandbox)
    if match is None:
        raise BadId(f"{sandbox!r} is no sandbox id", field="sandbox")
    return "n-" + match["node"]


def sandbox_of(node: str, project: str, operation: str, index: int) -> str:
    """The id of the sandbox that number `index` of a batch has on `node`: known before it is made."""
    return f"s-{node[2:]}-{_digest(f'{project}/{operation}/{index}')}"


def operation_of(operation: str, index: int) -> str:
    """The operation id of number `index` of a batch."""
    return f"{_digest(operation)}-{index}"


def job_of(operation: str) -> str:
    """The job of a batch that names none."""
    return "j-" + _digest(operation)


def _digest(text: str) -> str:
    return hashlib.blake2s(text.encode(), digest_size=12).hexdigest()


def exec_of(operation: str) -> str:
    """The exec id of a start operation: the same operation always names the same exec."""

    return "e-" + _digest(operation)
