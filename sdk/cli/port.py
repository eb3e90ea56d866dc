"""`dsec port`: reach a server inside a sandbox from this machine, until interrupted."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, say


def register(subparsers: Any) -> None:
    """Add the command `port`."""
    parser = subparsers.add_parser("port", help="reach a server inside", description=__doc__)
    options.client_options(parser)
    parser.add_argument("sandbox", help="sandbox id")
    parser.add_argument("port", type=int, help="TCP port inside")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait for somebody who listens")
    parser.add_argument("--local", type=int, default=0, help="port on 127.0.0.1 (default: any that is free)")
    parser.set_defaults(handler=forward)


async def forward(args: argparse.Namespace) -> int:
    """Print the URL and carry connections."""
    async with options.client_of(args) as client:
        sandbox = await client.attach(args.sandbox)
        if args.wait:
            await sandbox.wait_port(args.port, timeout=args.wait)
        async with sandbox.port(args.port, local=args.local) as url:
            if args.json:
                emit({"sandbox": sandbox.id, "port": args.port, "url": url})
            else:
                say(url)
            await asyncio.Event().wait()
    return 0
