"""The parts that run in this process, each with the connection whose figures are its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dsec.bus.transport import Bus


@dataclass(frozen=True, slots=True)
class Part:
    """`kind`: core, scheduler, edge…; `node`: whose part it is, if a node's."""

    kind: str
    node: str
    bus: Bus


_RUNNING: Final[list[Part]] = []


def running() -> list[Part]:
    """Those that run now, in the order in which they began."""
    return list(_RUNNING)


@contextlib.contextmanager
def seen(kind: str, node: str, bus: Bus) -> Iterator[None]:
    """A part is measured while the block runs."""
    part = Part(kind, node, bus)
    _RUNNING.append(part)
    try:
        yield
    finally:
        _RUNNING.remove(part)
