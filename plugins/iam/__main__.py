"""Manage identities while the platform runs: `python -m dsec.plugins.iam add-principal p-lab u-ann`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dsec.bus.errors import DsecError
from dsec.bus.home import Home
from dsec.plugins.iam import Iam


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0, or 1 with the reason on standard error."""
    chosen = _parser().parse_args(arguments)
    home = Home(chosen.home)
    try:
        if chosen.command == "add-principal":
            owner = Iam.create_principal(home, chosen.project, chosen.name).owner
        elif chosen.command == "add-node":
            owner = Iam.create_node(home, chosen.name).owner
        else:
            Iam.remove(home, chosen.name)
            return 0
    except DsecError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{home.credentials / owner}.json\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dsec.plugins.iam", description=__doc__)
    parser.add_argument("--home", type=Path, default=Home.default().path, help="the platform's home")
    commands = parser.add_subparsers(dest="command", required=True)
    principal = commands.add_parser("add-principal", help="print the path of its new credential file")
    principal.add_argument("project", help="p-…")
    principal.add_argument("name", help="u-…, unique in the installation")
    commands.add_parser("add-node", help="print the path of its new credential file").add_argument(
        "name", help="n-…"
    )
    commands.add_parser("remove", help="refuse it from its next connect on").add_argument(
        "name", help="u-… or n-…"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
