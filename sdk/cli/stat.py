"""`dsec stat`: one sandbox as its node has it."""

from __future__ import annotations

import argparse
from typing import Any

from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, table


def register(subparsers: Any) -> None:
    """Add the command `stat`."""
    parser = subparsers.add_parser("stat", help="show a sandbox", description=__doc__)
    options.client_options(parser)
    parser.add_argument("sandbox", help="sandbox id")
    parser.set_defaults(handler=stat)


async def stat(args: argparse.Namespace) -> int:
    """The record: a table of its fields, or JSON."""
    async with options.client_of(args) as client:
        record = (await client.attach(args.sandbox)).record
    if args.json:
        emit(record)
    else:
        fields = record.model_dump(mode="json") | {"image": " + ".join(record.spec.image.layers)}
        table(("field", "value"), ((name, value) for name, value in fields.items() if name != "spec"))
    return 0
