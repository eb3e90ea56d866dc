"""`dsec image`: layers of the node on this machine, imported from a directory, a tar or an EROFS file.

It works on the node's home, with the node running or not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import lzma
import struct
import tarfile
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from dsec.bus.driver import Images
from dsec.bus.errors import NoSuchFile, SpecError
from dsec.bus.home import Home, default_node
from dsec.bus.host import IMAGES, load
from dsec.bus.messages import Layer
from dsec.sdk.cli.output import emit, json_option, say, size, table, working

KINDS: Final = ("base", "workspace", "toolkit", "pack")
_EROFS_MAGIC: Final = struct.pack("<I", 0xE0F5E1E2)  # at byte 1024: erofs_fs.h, EROFS_SUPER_MAGIC_V1


def register(subparsers: Any) -> None:
    """Add the commands `image import` and `image ls`."""
    parser = subparsers.add_parser("image", help="layers of this machine's node", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    add = commands.add_parser("import", help="import a layer")
    _common(add)
    add.add_argument("--kind", choices=KINDS, default="base", help="default: %(default)s")
    add.add_argument("name", help="name in the catalog")
    add.add_argument("source", type=Path, help="directory, tar (also compressed) or EROFS file")
    add.set_defaults(handler=import_)
    ls = commands.add_parser("ls", help="list layers")
    _common(ls)
    ls.set_defaults(handler=list_)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", type=Path, default=Home.default().path, help="default: %(default)s")
    parser.add_argument("--node", default=default_node(), help="default: %(default)s")
    parser.add_argument("--images", default="erofs", help="kind of store (default: %(default)s)")
    json_option(parser)


@contextlib.asynccontextmanager
async def _store(args: argparse.Namespace) -> AsyncIterator[Any]:
    """The store behind the entry point; the methods of importing are its own, beyond `bus.driver.Images`."""
    store: Images = load(IMAGES, args.images)(Home(args.home.absolute()).images(args.node))
    try:
        yield store
    finally:
        await store.close()


async def import_(args: argparse.Namespace) -> int:
    """Import by what the source is, and tell the layer."""
    form = await asyncio.to_thread(form_of, args.source)
    async with _store(args) as store:
        importers = {"tree": store.import_tree, "tar": store.import_tar, "erofs": store.import_file}
        with working(f"importing {args.source} as {args.name}"):
            layer: Layer = await importers[form](args.name, args.source, args.kind)
    if args.json:
        emit(layer)
    else:
        say(f"{layer.name} {layer.kind} {size(layer.size)} sha256:{layer.digest}")
    return 0


async def list_(args: argparse.Namespace) -> int:
    """The catalog."""
    async with _store(args) as store:
        layers: list[Layer] = await store.layers()
    if args.json:
        for layer in layers:
            emit(layer)
    else:
        rows = ((one.name, one.kind, size(one.size), one.digest[:16]) for one in layers)
        table(("layer", "kind", "size", "sha256"), rows)
    return 0


def form_of(source: Path) -> str:
    """`tree`, `tar` or `erofs`. Raises NoSuchFile, SpecError."""
    if source.is_dir():
        return "tree"
    try:
        with source.open("rb") as file:
            file.seek(1024)
            if file.read(4) == _EROFS_MAGIC:
                return "erofs"
        if tarfile.is_tarfile(source):
            return "tar"
    except OSError as error:
        raise NoSuchFile(f"{source}: {error.strerror or error}", field="source") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise SpecError(f"{source} is cut off or damaged: {error}", field="source") from error
    raise SpecError(f"{source} is neither a directory nor a tar nor an EROFS file", field="source")
