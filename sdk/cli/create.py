"""`dsec create`: create a sandbox and tell its id."""

from __future__ import annotations

import argparse
from typing import Any

from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, say, working


def register(subparsers: Any) -> None:
    """Add the command `create`."""
    parser = subparsers.add_parser("create", help="create a sandbox", description=__doc__)
    options.client_options(parser)
    options.spec_options(parser)
    parser.set_defaults(handler=create)


async def create(args: argparse.Namespace) -> int:
    """Print the id, or the record as JSON."""
    async with options.client_of(args) as client:
        with working("creating the sandbox"):
            sandbox = await client.create(key=args.key, **options.spec_of(args))
    if args.json:
        emit(sandbox.record)
    else:
        say(sandbox.id)
    return 0
