"""`dsec cp`: files and directories into a sandbox or out of it; `SANDBOX:PATH` names the inside."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dsec.bus.errors import SpecError
from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, working


def register(subparsers: Any) -> None:
    """Add the command `cp`."""
    parser = subparsers.add_parser("cp", help="copy files in or out", description=__doc__)
    options.client_options(parser)
    parser.add_argument("source", help="PATH or SANDBOX:PATH")
    parser.add_argument("target", help="PATH or SANDBOX:PATH")
    parser.set_defaults(handler=cp)


async def cp(args: argparse.Namespace) -> int:
    """Into an existing local directory it goes under its own name."""
    inside = [_inside(text) for text in (args.source, args.target)]
    if sum(place is not None for place in inside) != 1:
        raise SpecError("one of source and target must be SANDBOX:PATH", field="source")
    async with options.client_of(args) as client:
        with working(f"copying {args.source}"):
            if inside[1] is not None:
                sandbox, path = inside[1]
                await (await client.attach(sandbox)).upload(args.source, path)
            elif inside[0] is not None:
                sandbox, path = inside[0]
                await (await client.attach(sandbox)).download(path, _local(args.target, path))
    if args.json:
        emit({"source": args.source, "target": args.target})
    return 0


def _inside(text: str) -> tuple[str, str] | None:
    sandbox, colon, path = text.partition(":")
    return (sandbox, path) if colon and sandbox.startswith("s-") else None


def _local(target: str, remote: str) -> Path:
    local = Path(target)
    return local / Path(remote).name if local.is_dir() else local
