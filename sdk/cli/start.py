"""`dsec start`: run a stopped sandbox again, with all that it has written."""

from __future__ import annotations

import argparse
from typing import Any

from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, say


def register(subparsers: Any) -> None:
    """Add the command `start`."""
    parser = subparsers.add_parser("start", help="start a stopped sandbox", description=__doc__)
    options.client_options(parser)
    parser.add_argument("sandbox", help="sandbox id")
    parser.set_defaults(handler=start)


async def start(args: argparse.Namespace) -> int:
    """Print the id when it runs."""
    async with options.client_of(args) as client:
        record = await (await client.attach(args.sandbox)).start()
    if args.json:
        emit(record)
    else:
        say(record.sandbox)
    return 0
