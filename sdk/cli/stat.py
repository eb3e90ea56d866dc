"""`dsec stat`: one sandbox as its node has it."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from dsec.bus.messages import Record
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
        table(("field", "value"), shown(record).items())
    return 0


def shown(record: Record) -> dict[str, object]:
    """What people look at; `--json` tells all."""
    spec, limits = record.spec, record.applied.model_dump(exclude_none=True)
    fields = {
        "sandbox": record.sandbox,
        "state": record.state.value,
        "failure": record.failure and record.failure.value,
        "reason": record.reason,
        "project": record.project,
        "principal": record.principal,
        "node": record.node,
        "backend": spec.backend,
        "image": " + ".join(spec.image.layers),
        "limits": ", ".join(f"{name} {value}" for name, value in limits.items()),
        "created": _moment(record.created),
        "expires": _moment(record.expires),
        "job": spec.job,
        "labels": ", ".join(f"{name}={value}" for name, value in spec.labels.items()),
    }
    return {name: value for name, value in fields.items() if value}


def _moment(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(" ", "seconds")
