"""The catalogs of nodes on this machine, while their agents run or not."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, runtime_checkable

from dsec.bus.errors import MissingTool
from dsec.bus.home import Home
from dsec.bus.host import IMAGES, load
from dsec.bus.messages import Layer


@runtime_checkable
class KeepsLayers(Protocol):
    """What a store of images offers besides `bus.driver.Images`, if its layers can be backed up."""

    async def layers(self) -> list[Layer]:
        """The catalog, by name."""
        ...

    async def export(self, where: Callable[[str], Path]) -> list[Layer]:
        """Copy each layer of the catalog to `where(digest)`, verified, each once; which they are.

        Raises InfraError (a layer is damaged), DiskFull.
        """
        ...

    async def take(self, layer: Layer, file: Path) -> None:
        """Add a copy of `file`. Repeatable. Raises Conflict, InfraError (another digest), DiskFull."""
        ...

    async def close(self) -> None:
        """Repeatable."""
        ...


@contextlib.asynccontextmanager
async def catalog(home: Home, node: str) -> AsyncIterator[KeepsLayers]:
    """The node's layers. Raises MissingTool when its store of images cannot be backed up."""
    names = sorted(entry.name for entry in entry_points(group=IMAGES))
    store = load(IMAGES, names[0] if names else "erofs")(home.images(node))
    if not isinstance(store, KeepsLayers):
        raise MissingTool(f"the images of {node} cannot be backed up: {names[0]} does not export layers")
    try:
        yield store
    finally:
        await store.close()
