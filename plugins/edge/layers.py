"""Whose layers are whose: what the node's operator imported is everybody's, what a project packed is its own.

In the node's catalog a packed layer is called `<project>.<name>`. Its project leaves the prefix out; to all
others the layer does not exist, and its name is free.
"""

from __future__ import annotations

import re
from typing import Final

from dsec.bus.driver import Images
from dsec.bus.errors import Conflict, NoSuchImage, SpecError
from dsec.bus.messages import Layer
from dsec.bus.spec import Image

_OF_A_PROJECT: Final = re.compile(r"p-[a-z0-9_-]+\.")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,75}")
"""Shorter than other layers' by the longest prefix."""


async def resolve(images: Images, project: str, image: Image) -> Image:
    """`image` with the names of the catalog. Raises NoSuchImage for a name with a project in it."""

    async def named(name: str) -> str:
        if _OF_A_PROJECT.match(name):
            raise NoSuchImage(f"no layer {name!r} on this node: import it first", field="image")
        packed = f"{project}.{name}"
        return packed if await images.has(packed) else name

    return Image(
        base=await named(image.base),
        workspace=image.workspace and await named(image.workspace),
        toolkits=tuple([await named(name) for name in image.toolkits]),
        packs=tuple([await named(name) for name in image.packs]),
    )


async def pack(images: Images, project: str, sandbox: str, name: str, paths: tuple[str, ...] | None) -> Layer:
    """The sandbox's writable layer as the project's layer `name`.

    Raises SpecError, Conflict (other content has the name, or the operator uses it), and as Images.pack.
    """
    if not _NAME.fullmatch(name) or _OF_A_PROJECT.match(name):
        raise SpecError(f"{name!r} is not the name of a packed layer: {_NAME.pattern}", field="name")
    if await images.has(name):
        raise Conflict(f"layer {name!r} is the operator's: choose another name", field="name")
    layer = await images.pack(sandbox, f"{project}.{name}", paths)
    return layer.model_copy(update={"name": name})
