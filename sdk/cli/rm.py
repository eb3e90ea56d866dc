"""`dsec rm`: destroy sandboxes."""

from __future__ import annotations

import argparse
from typing import Any

from dsec.bus.errors import SpecError
from dsec.bus.messages import State
from dsec.sdk import Client
from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, progress_console, say
from dsec.sdk.concurrency import each, stream_of

AT_ONCE = 16
_OVER = {State.DESTROYED, State.FAILED}


def register(subparsers: Any) -> None:
    """Add the command `rm`."""
    parser = subparsers.add_parser("rm", help="destroy sandboxes", description=__doc__)
    options.client_options(parser)
    parser.add_argument("sandbox", nargs="*", help="sandbox id")
    parser.add_argument("--all", action="store_true", help="every sandbox of the project")
    parser.set_defaults(handler=rm)


async def rm(args: argparse.Namespace) -> int:
    """Print each id when nothing of it is left."""
    if bool(args.sandbox) == args.all:
        raise SpecError("name sandboxes, or --all", field="sandbox")
    async with options.client_of(args) as client:
        names = args.sandbox or [one.sandbox async for one in client.list() if one.state not in _OVER]
        with progress_console().status(f"destroying {len(names)} sandboxes"):
            await each(stream_of(names), lambda name: _remove(client, name, as_json=args.json), AT_ONCE)
    return 0


async def _remove(client: Client, name: str, *, as_json: bool) -> None:
    await (await client.attach(name)).destroy()
    if as_json:
        emit({"destroyed": name})
    else:
        say(name)
