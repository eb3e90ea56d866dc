"""Manage identities of a home, whether or not the platform runs: `python -m dsec.plugins.iam add-node n-x`.

What is changed is an order to the iam of that home, which carries it out within a second, or when it starts.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dsec.bus.errors import AlreadyRunning, DsecError, InfraError
from dsec.bus.home import Home
from dsec.bus.nats import context as natscontext
from dsec.bus.nats.credentials import Credentials, Role
from dsec.plugins.iam import Iam, bundle, rotation
from dsec.plugins.iam.pending import Pending

CARRIED_OUT_WITHIN: Final = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0, or 1 with the reason on standard error."""
    chosen = _parser().parse_args(arguments)
    try:
        told = _COMMANDS[chosen.command](Home(chosen.home.absolute()), chosen)
    except DsecError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{chosen.home}: {error}\n")
        return 1
    sys.stdout.write(f"{told}\n" if told else "")
    return 0


def _add_principal(home: Home, chosen: argparse.Namespace) -> str:
    return f"{home.credentials / Iam.create_principal(home, chosen.project, chosen.name).owner}.json"


def _add_node(home: Home, chosen: argparse.Namespace) -> str:
    return f"{home.credentials / Iam.create_node(home, chosen.name).owner}.json"


def _add_driver(home: Home, chosen: argparse.Namespace) -> str:
    return f"{home.credentials / Iam.create_plugin(home, chosen.node, chosen.driver).owner}.json"


def _remove(home: Home, chosen: argparse.Namespace) -> str:
    Iam.remove(home, chosen.name)
    return ""


def _rotate(home: Home, chosen: argparse.Namespace) -> str:
    """Of the broker's: at once when nothing runs, else `dsec up` is asked to do it between two servers."""
    if chosen.name not in rotation.OF_THE_BROKER:
        file = rotation.rotate(home, chosen.name, grace=chosen.grace)
        if _runs(home):
            _until(lambda: not Pending(home.part("iam")).waiting(), "iam has not heard of it yet: is it up?")
            if chosen.name == Role.OPERATOR:
                natscontext.write(home, home.ready()["url"], Credentials.load(file))
        return str(file)
    rotation.renew(home, chosen.name)
    try:
        with home.held("control"):
            rotation.settle(home)
    except AlreadyRunning:
        ready = home.ready()
        if "broker_pid" not in ready:
            return (
                "it counts from `dsec broker config` on: write its files anew, start every server with them"
            )
        os.kill(int(ready["pid"]), signal.SIGHUP)
        _until(lambda: not list(home.path.glob(f"*/**/*{rotation.NEXT}")), "`dsec up` has not taken it up")
    return ""


def _runs(home: Home) -> bool:
    try:
        with home.held("control"):
            return False
    except AlreadyRunning:
        return True


def _until(done: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + CARRIED_OUT_WITHIN
    while not done():
        if time.monotonic() > until:
            raise InfraError(otherwise)
        time.sleep(0.05)


def _export(home: Home, chosen: argparse.Namespace) -> str:
    bundle.export(home, chosen.file)
    return str(chosen.file)


def _import(home: Home, chosen: argparse.Namespace) -> str:
    bundle.bring_in(home, chosen.file)
    return ""


_COMMANDS: Final[dict[str, Callable[[Home, argparse.Namespace], str]]] = {
    "add-principal": _add_principal,
    "add-node": _add_node,
    "add-driver": _add_driver,
    "remove": _remove,
    "rotate": _rotate,
    "export": _export,
    "import": _import,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dsec.plugins.iam", description=__doc__)
    parser.add_argument("--home", type=Path, default=Home.default().path, help="the platform's home")
    commands = parser.add_subparsers(dest="command", required=True)
    principal = commands.add_parser("add-principal", help="print the path of its new credential file")
    principal.add_argument("project", help="p-…")
    principal.add_argument("name", help="u-…, unique in the installation")
    node = commands.add_parser("add-node", help="print the path of its new credential file")
    node.add_argument("name", help="n-…")
    driver = commands.add_parser("add-driver", help="print the path of its new credential file")
    driver.add_argument("node", help="n-…")
    driver.add_argument("driver", help="its name")
    remove = commands.add_parser("remove", help="refuse it from now on, and end its connections")
    remove.add_argument("name", help="u-…, n-… or d-…")
    rotate = commands.add_parser("rotate", help="give it another key; its file is replaced")
    rotate.add_argument("name", help="core, scheduler, journal, operator, n-…, d-…, u-…, iam or issuer")
    rotate.add_argument(
        "--grace", type=float, default=0.0, metavar="SECONDS", help="for which the former key is accepted"
    )
    for command, what in (("export", "write"), ("import", "take in")):
        commands.add_parser(command, help=f"{what} what a second control plane needs").add_argument(
            "file", type=Path, help="holds secrets, mode 0600"
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
