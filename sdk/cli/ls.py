"""`dsec ls`: the project's sandboxes."""

from __future__ import annotations

import argparse
import time
from typing import Any

from dsec.bus.messages import Record, State
from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, size, table


def register(subparsers: Any) -> None:
    """Add the command `ls`."""
    parser = subparsers.add_parser("ls", help="list sandboxes", description=__doc__)
    options.client_options(parser)
    parser.add_argument("--state", choices=[state.value for state in State], help="only in this state")
    parser.add_argument("--job", help="only of this job")
    parser.set_defaults(handler=ls)


async def ls(args: argparse.Namespace) -> int:
    """A table, or a record a line."""
    async with options.client_of(args) as client:
        records = [record async for record in client.list(state=args.state, job=args.job)]
    if args.json:
        for record in records:
            emit(record)
    else:
        table(("sandbox", "state", "backend", "image", "memory", "age"), (_row(one) for one in records))
    return 0


def _row(record: Record) -> tuple[object, ...]:
    memory = size(record.applied.memory) if record.applied.memory else "-"
    age = f"{time.time() - record.created / 1000:.0f} s"
    layers = " + ".join(record.spec.image.layers)
    return record.sandbox, record.state.value, record.spec.backend, layers, memory, age
