"""Whether this node takes a sandbox, and with which limits: pure.

Limits that were asked for and that the backend does not enforce are refused, never ignored. A refusal for
want of room is a veto: core places the sandbox on another node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dsec.bus.driver import Info
from dsec.bus.errors import NoCapacity, Unsupported
from dsec.bus.spec import GIB, MIB, Limits, Spec

DEFAULT_LOG_BYTES: Final = 256 * MIB


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the machine has and how far it may be promised; bytes, cores."""

    cpu: float
    memory: int
    sandboxes: int = 1000
    memory_overcommit: float = 4.0
    cpu_overcommit: float = 64.0
    disk_reserve: int = GIB


@dataclass(frozen=True, slots=True)
class Load:
    """What is promised to live sandboxes and those being created."""

    sandboxes: int = 0
    cpu: float = 0.0
    memory: int = 0


def load(applied: Iterable[Limits]) -> Load:
    """The sum of what sandboxes were promised."""
    limits = list(applied)
    return Load(len(limits), sum(one.cpu or 0.0 for one in limits), sum(one.memory or 0 for one in limits))


def applied(spec: Spec, backends: Mapping[str, Info]) -> Limits:
    """The limits as the backend will apply them. Raises Unsupported naming the field."""
    info = backends.get(spec.backend)
    if info is None:
        known = ", ".join(sorted(backends)) or "none"
        raise Unsupported(f"backend {spec.backend!r} is not on this node (it has: {known})", field="backend")
    offered = info.limits | {"log_bytes"}  # the node itself enforces this one, for every backend
    for name in sorted(spec.limits.asked() - offered):
        raise Unsupported(f"backend {spec.backend!r} cannot enforce limits.{name}", field=f"limits.{name}")
    defaults = info.defaults.model_dump(include=set(offered))
    defaults["log_bytes"] = defaults.get("log_bytes") or DEFAULT_LOG_BYTES
    return spec.limits.over(Limits(**defaults))


def admit(limits: Limits, *, now: Load, capacity: Capacity, disk_free: int, draining: bool) -> None:
    """Raises NoCapacity telling what is short; the caller makes it a veto."""
    if draining:
        raise NoCapacity("the node is draining")
    if now.sandboxes >= capacity.sandboxes:
        raise NoCapacity(f"the node has its {capacity.sandboxes} sandboxes")
    if now.memory + (limits.memory or 0) > capacity.memory * capacity.memory_overcommit:
        raise NoCapacity("the node's memory is promised")
    if now.cpu + (limits.cpu or 0.0) > capacity.cpu * capacity.cpu_overcommit:
        raise NoCapacity("the node's cores are promised")
    if disk_free < capacity.disk_reserve:
        raise NoCapacity("the node's disk is nearly full")
