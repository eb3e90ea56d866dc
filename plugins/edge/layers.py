"""Layers that projects pack on this node; how they are named is told in `bus.layers`."""

from __future__ import annotations

import re
from typing import Final

from dsec.bus.driver import Images
from dsec.bus.errors import Conflict, SpecError
from dsec.bus.layers import OF_A_PROJECT, resolve
from dsec.bus.messages import Layer

__all__ = ["pack", "resolve"]

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,75}")
"""Shorter than other layers' by the longest prefix."""


async def pack(images: Images, project: str, sandbox: str, name: str, paths: tuple[str, ...] | None) -> Layer:
    """The sandbox's writable layer as the project's layer `name`.

    Raises SpecError, Conflict (other content has the name, or the operator uses it), and as Images.pack.
    """
    if not _NAME.fullmatch(name) or OF_A_PROJECT.match(name):
        raise SpecError(f"{name!r} is not the name of a packed layer: {_NAME.pattern}", field="name")
    if await images.has(name):
        raise Conflict(f"layer {name!r} is the operator's: choose another name", field="name")
    layer = await images.pack(sandbox, f"{project}.{name}", paths)
    return layer.model_copy(update={"name": name})
