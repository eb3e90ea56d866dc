"""`dsec run`: create a sandbox, run one command in it, destroy it."""

from __future__ import annotations

import argparse
from typing import Any

from dsec.sdk.cli import options
from dsec.sdk.cli.following import PLATFORM_FAILED, follow
from dsec.sdk.cli.output import working


def register(subparsers: Any) -> None:
    """Add the command `run`."""
    parser = subparsers.add_parser("run", help="run a command in a fresh sandbox", description=__doc__)
    options.client_options(parser)
    options.spec_options(parser)
    options.command_options(parser)
    parser.set_defaults(handler=run, error_code=PLATFORM_FAILED)


async def run(args: argparse.Namespace) -> int:
    """The command's exit code."""
    async with options.client_of(args) as client:
        with working("creating the sandbox"):
            sandbox = await client.create(key=args.key, **options.spec_of(args))
        try:
            running = await sandbox.start(**options.command_of(args))
            return await follow(running, as_json=args.json, interactive=args.interactive)
        finally:
            await sandbox.destroy()
