"""`dsec pack`: keep what a sandbox has written as a layer, from which new sandboxes start."""

from __future__ import annotations

import argparse
from typing import Any

from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, say, size, working


def register(subparsers: Any) -> None:
    """Add the command `pack`."""
    parser = subparsers.add_parser("pack", help="writable layer as a new layer", description=__doc__)
    options.client_options(parser)
    parser.add_argument("sandbox", help="sandbox id")
    parser.add_argument("name", help="name of the layer")
    parser.add_argument("--path", action="append", help="only what lies below; absolute, repeatable")
    parser.set_defaults(handler=pack)


async def pack(args: argparse.Namespace) -> int:
    """Print the layer."""
    async with options.client_of(args) as client:
        with working(f"packing {args.sandbox}"):
            layer = await (await client.attach(args.sandbox)).pack(args.name, args.path)
    if args.json:
        emit(layer)
    else:
        say(f"{layer.name} {size(layer.size)} sha256:{layer.digest}")
    return 0
