"""`dsec ps`: commands of a sandbox, those that run or all that there were."""

from __future__ import annotations

import argparse
import time
from typing import Any

from dsec.bus.exec_list import ExecInfo
from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, table


def register(subparsers: Any) -> None:
    """Add the command `ps`."""
    parser = subparsers.add_parser("ps", help="commands of a sandbox", description=__doc__)
    options.client_options(parser)
    parser.add_argument("sandbox", help="sandbox id")
    parser.add_argument("-a", "--all", action="store_true", help="those that have ended, too")
    parser.set_defaults(handler=ps)


async def ps(args: argparse.Namespace) -> None:
    """A row, or with `--json` an object, for each."""
    async with options.client_of(args) as client:
        sandbox = await client.attach(args.sandbox)
        execs = [info async for info in sandbox.execs(running=not args.all)]
    if args.json:
        for info in execs:
            emit(info.model_dump(mode="json"))
    else:
        table(("exec", "kind", "started", "state", "command"), map(_row, execs))


def _row(info: ExecInfo) -> tuple[str, ...]:
    started = time.strftime("%H:%M:%S", time.localtime(info.started / 1000))
    return info.exec, info.kind, started, _state(info), " ".join(info.argv)[:60]


def _state(info: ExecInfo) -> str:
    if info.end is None:
        return "running"
    if info.end.code is not None:
        return f"exit {info.end.code}"
    return info.end.ended.value if info.end.signal is None else f"signal {info.end.signal}"
