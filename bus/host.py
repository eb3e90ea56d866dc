"""The plugin host: finds plugins and drivers by entry point and runs each with an identity of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dsec.bus.driver import Driver, Images
from dsec.bus.transport import Bus


@dataclass(frozen=True, slots=True)
class Context:
    """What the host hands to a plugin; `home` is its own directory, a node's parts have `node` set."""

    home: Path
    node: str = ""
    drivers: Mapping[str, Driver] | None = None
    images: Images | None = None


class Plugin(Protocol):
    """A part of the platform: serves while its block runs, and has left nothing running when it ends."""

    @classmethod
    def running(cls, bus: Bus, context: Context) -> AbstractAsyncContextManager[None]: ...
