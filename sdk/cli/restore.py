"""`dsec restore DIR`: a back-up into a home that nothing runs on and that has no streams of its own.

A damaged back-up is refused before anything is changed; an interrupted restore is run again. Credentials are
not in a back-up: the next `dsec up` makes those of the parts, principals and nodes keep their own.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dsec.bus.backup.restoring import restore
from dsec.bus.home import Home
from dsec.sdk.cli.backup import text, told
from dsec.sdk.cli.output import emit, json_option, say


def register(subparsers: Any) -> None:
    """Add the command `restore`."""
    parser = subparsers.add_parser("restore", help="bring a back-up into an empty home", description=__doc__)
    parser.add_argument("directory", type=Path, help="of `dsec backup`")
    parser.add_argument("--home", type=Path, default=Home.default().path, help="is made when it is missing")
    json_option(parser)
    parser.set_defaults(handler=run)


async def run(args: argparse.Namespace) -> int:
    """The exit code. Raises SpecError, Conflict, AlreadyRunning, DiskFull, InfraError."""
    done = await restore(Home(args.home.absolute()), args.directory)
    if args.json:
        kept = done.manifest
        emit({"id": kept.id, "home": str(args.home), "already": done.already, **told(kept)})
    elif done.already:
        say(f"{args.home} came from this back-up before; nothing was changed")
    else:
        say(f"{args.home}: {text(done.manifest)}")
    return 0
