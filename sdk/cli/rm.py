"""`dsec rm`: destroy sandboxes."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from dsec.bus.errors import DsecError, SpecError
from dsec.bus.messages import State
from dsec.sdk import Client
from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, fail, say, working
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
    """Print each id when nothing of it is left; one that fails does not keep the others."""
    if bool(args.sandbox) == args.all:
        raise SpecError("name sandboxes, or --all", field="sandbox")
    async with options.client_of(args) as client:
        names = args.sandbox or [one.sandbox async for one in client.list() if one.state not in _OVER]
        with working(f"destroying {len(names)} sandboxes"):
            failures: list[DsecError] = []
            remove = functools.partial(_remove, client, failures, as_json=args.json)
            await each(stream_of(names), remove, AT_ONCE)
    for failure in failures[1:]:
        fail(failure, as_json=args.json)
    if failures:
        raise failures[0]
    return 0


async def _remove(client: Client, failures: list[DsecError], name: str, *, as_json: bool) -> None:
    try:
        await (await client.attach(name)).destroy()
    except DsecError as error:  # the others are destroyed all the same
        failures.append(error)
        return
    if as_json:
        emit({"destroyed": name})
    else:
        say(name)
