"""`dsec logs`: what a command printed, from the log; a running one is followed to its end."""

from __future__ import annotations

import argparse
from typing import Any

from dsec.sdk.cli import options
from dsec.sdk.cli.following import PLATFORM_FAILED, follow


def register(subparsers: Any) -> None:
    """Add the command `logs`."""
    parser = subparsers.add_parser("logs", help="output of a command", description=__doc__)
    options.client_options(parser)
    parser.add_argument("sandbox", help="sandbox id")
    parser.add_argument("exec", help="exec id")
    parser.add_argument("--offset", type=int, default=0, help="bytes of output to skip")
    parser.set_defaults(handler=logs, error_code=PLATFORM_FAILED)


async def logs(args: argparse.Namespace) -> int:
    """The command's exit code."""
    async with options.client_of(args) as client:
        running = client.exec(args.sandbox, args.exec, offset=args.offset)
        return await follow(running, as_json=args.json)
