"""`dsec principal add`: a new principal of a project, and its credentials file.

It works on the home of the control plane on this machine, with the platform running or not.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dsec.bus.home import Home
from dsec.bus.host import PLUGINS, load
from dsec.sdk.cli.output import emit, json_option, say


def register(subparsers: Any) -> None:
    """Add the command `principal add`."""
    parser = subparsers.add_parser("principal", help="who may use the platform", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    add = commands.add_parser("add", help="make a principal and its credentials")
    add.add_argument("--home", type=Path, default=Home.default().path, help="default: %(default)s")
    add.add_argument("--project", default="p-default", help="p-…, made by having one (default: %(default)s)")
    add.add_argument("name", help="u-…")
    json_option(add)
    add.set_defaults(handler=add_principal)


def add_principal(args: argparse.Namespace) -> int:
    """Print the path of the credentials file. Raises BadId, Conflict."""
    home = Home(args.home.absolute())
    made = load(PLUGINS, "iam").create_principal(home, args.project, args.name)
    path = home.credentials / f"{made.principal}.json"
    if args.json:
        emit({"project": made.project, "principal": made.principal, "credentials": str(path)})
    else:
        say(str(path))
    return 0
