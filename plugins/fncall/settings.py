"""What a node spends on calls."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from dsec.plugins.fncall.devices import Device

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
DEFAULT_IMAGE: Final = "functions"
"""Name of the layer in the node's catalog in which calls run that ask for none."""


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Settings:
    """Bytes, seconds, counts. `at_once`: calls that run; `waiting`: calls, or cases, that wait for a place;
    `patience`: how long one may wait; `memory`: of all running calls together.

    `workers`: warm workers kept, of all projects; `idle`: one that nobody used so long is ended;
    `worker_memory`: what its own processes may take, libraries included.
    """

    at_once: int = field(default_factory=lambda: 2 * _cores())
    waiting: int = 4096
    patience: float = 10.0
    memory: int = field(default_factory=lambda: _memory() // 2)
    workers: int = 16
    idle: float = 300.0
    worker_memory: int = GIB
    warm_within: float = 60.0
    artefact_bytes: int = 256 * MIB
    """Kept per project on this node; the least recently used go first."""
    devices: tuple[Device, ...] = ()
