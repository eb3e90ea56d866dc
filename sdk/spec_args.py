"""Keyword arguments of `Client.create` and `Client.sandbox`, so that editors and type checkers know them.

They mirror `dsec.bus.spec.Spec`, which alone decides: what it refuses is refused here with the same error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict


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
