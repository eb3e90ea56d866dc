"""Keyword arguments of `Client.create` and `Client.sandbox`, so that editors and type checkers know them.

They mirror `dsec.bus.spec.Spec`, which alone decides: what it refuses is refused here with the same error.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

import orjson

from dsec.bus.spec import parse_spec

_KEPT: Final = 256
_LONGEST: Final = 4096
"""Bytes of the arguments whose outcome is kept: the sandboxes of a job are asked for alike."""


class ImageArgs(TypedDict, total=False):
    """Layers from the bottom up; `base` is needed."""

    base: str
    workspace: str | None
    toolkits: Sequence[str]
    packs: Sequence[str]


class LimitArgs(TypedDict, total=False):
    """What is asked for; left out means the node's default. Bytes, cores, counts."""

    cpu: float | None
    memory: int | None
    pids: int | None
    disk: int | None
    nofile: int | None
    log_bytes: int | None


class SpecArgs(TypedDict, total=False):
    """See `dsec.bus.spec.Spec`. `image` may be the name of a base layer alone."""

    backend: str
    image: str | ImageArgs
    limits: LimitArgs
    cpu_class: Literal["latency", "besteffort"]
    ttl: float
    idle_ttl: float | None
    network: Literal["none"]
    user: str
    env: Mapping[str, str]
    job: str | None
    labels: Mapping[str, str]


def asked(spec: Mapping[str, Any]) -> orjson.Fragment:
    """The arguments as the JSON that is sent, nothing but what was given. Raises UnknownField, SpecError."""
    try:
        raw = orjson.dumps(spec)
    except TypeError:  # mappings and sequences of other kinds
        raw = b"null"
    plain = len(raw) <= _LONGEST and b"null" not in raw  # which also stands for a number that is none
    return orjson.Fragment(_kept(raw) if plain else _checked(dict(spec)))


def _checked(spec: dict[str, Any]) -> bytes:
    return parse_spec(spec).model_dump_json(exclude_unset=True).encode()


@functools.lru_cache(_KEPT)
def _kept(raw: bytes) -> bytes:
    return _checked(orjson.loads(raw))
