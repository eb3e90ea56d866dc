"""`dsec watch`: what changes among the files of a sandbox, a line each, until interrupted."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, say


def register(subparsers: Any) -> None:
    """Add the command `watch`."""
    parser = subparsers.add_parser("watch", help="follow changes of files", description=__doc__)
    options.client_options(parser)
    parser.add_argument("sandbox", help="sandbox id")
    parser.add_argument("path", help="directory or file inside")
    parser.add_argument("-r", "--recursive", action="store_true", help="directories below it, too")
    parser.set_defaults(handler=follow)


async def follow(args: argparse.Namespace) -> int:
    """Print events until the path is gone."""
    async with options.client_of(args) as client:
        sandbox = await client.attach(args.sandbox)
        async with sandbox.files.watch(args.path, recursive=args.recursive) as events:
            async for event in events:
                if args.json:
                    emit(event.model_dump(mode="json"))
                else:
                    say(f"{event.kind}\t{event.path}" + (f"\t{event.to}" if event.to else ""))
                    sys.stdout.flush()
    return 0
