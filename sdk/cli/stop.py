"""`dsec stop`: end everything inside a sandbox and keep what it has written."""

from __future__ import annotations

import argparse
from typing import Any

from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, say


def register(subparsers: Any) -> None:
    """Add the command `stop`."""
    parser = subparsers.add_parser("stop", help="stop a sandbox, keep its files", description=__doc__)
    options.client_options(parser)
    parser.add_argument("sandbox", help="sandbox id")
    parser.add_argument(
        "--grace", type=float, default=0.0, help="seconds that commands have to end after SIGTERM"
    )
    parser.set_defaults(handler=stop)


async def stop(args: argparse.Namespace) -> int:
    """Print the id when nothing inside runs any more."""
    async with options.client_of(args) as client:
        record = await (await client.attach(args.sandbox)).stop(grace=args.grace)
    if args.json:
        emit(record)
    else:
        say(record.sandbox)
    return 0
