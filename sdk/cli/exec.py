"""`dsec exec`: run a command in a sandbox that is there."""

from __future__ import annotations

import argparse
from typing import Any

from dsec.sdk.cli import options
from dsec.sdk.cli.following import PLATFORM_FAILED, follow
from dsec.sdk.cli.output import emit, say
from dsec.sdk.spec_args import LimitArgs


def register(subparsers: Any) -> None:
    """Add the command `exec`."""
    parser = subparsers.add_parser("exec", help="run a command in a sandbox", description=__doc__)
    options.client_options(parser)
    parser.add_argument("sandbox", help="sandbox id")
    parser.add_argument(
        "-d", "--detach", action="store_true", help="print the exec's id and leave it running"
    )
    parser.add_argument("--key", help="idempotency key: the same key runs the command once")
    options.command_options(parser)
    limits = parser.add_argument_group("limits of this command alone")
    limits.add_argument("--cpu", type=float, help="cores")
    limits.add_argument("--memory", type=options.amount, help="bytes, or with K, M, G")
    limits.add_argument("--pids", type=int, help="processes and threads")
    parser.set_defaults(handler=execute, error_code=PLATFORM_FAILED)


async def execute(args: argparse.Namespace) -> int:
    """The command's exit code; 0 when detached."""
    async with options.client_of(args) as client:
        sandbox = await client.attach(args.sandbox)
        running = await sandbox.start(
            key=args.key, detach=args.detach, limits=_limits(args), **options.command_of(args)
        )
        if not args.detach:
            return await follow(running, as_json=args.json, interactive=args.interactive)
    if args.json:
        emit({"sandbox": sandbox.id, "exec": running.id})
    else:
        say(running.id)
    return 0


def _limits(args: argparse.Namespace) -> LimitArgs:
    """Those that were given."""
    return LimitArgs(cpu=args.cpu, memory=args.memory, pids=args.pids)
