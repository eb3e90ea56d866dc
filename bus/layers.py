"""Whose layers are whose: what the node's operator imported is everybody's, what a project packed is its own.

In the node's catalog a packed layer is called `<project>.<name>`. Its project leaves the prefix out; to all
others the layer does not exist, and its name is free.
"""

from __future__ import annotations

import re
from typing import Final

from dsec.bus.driver import Images
from dsec.bus.errors import NoSuchImage
from dsec.bus.spec import Image

OF_A_PROJECT: Final = re.compile(r"p-[a-z0-9_-]+\.")
"""How a layer's name begins that some project packed."""


async def resolve(images: Images, project: str, image: Image) -> Image:
    """`image` with the names of the catalog. Raises NoSuchImage for a name with a project in it."""

    async def named(name: str) -> str:
        if OF_A_PROJECT.match(name):
            raise NoSuchImage(f"no layer {name!r} on this node: import it first", field="image")
        packed = f"{project}.{name}"
        return packed if await images.has(packed) else name

    return Image(
        base=await named(image.base),
        workspace=image.workspace and await named(image.workspace),
        toolkits=tuple([await named(name) for name in image.toolkits]),
        packs=tuple([await named(name) for name in image.packs]),
    )
