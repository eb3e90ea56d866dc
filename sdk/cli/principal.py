"""`dsec principal add|ls|rotate|rm`: who may use one's own project and those below it.

It asks the platform as the principal that the options name. `add --offline` is the operator's: it works on
the home of the control plane on this machine, with the platform running or not.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dsec.bus.errors import DsecError, InfraError, SpecError
from dsec.bus.home import Home
from dsec.bus.host import PLUGINS, load
from dsec.bus.nats.credentials import Credentials, Role, new_seed
from dsec.bus.projects import RIGHTS, ROOT
from dsec.sdk import Client, config
from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, say, table


def register(subparsers: Any) -> None:
    """Add the command `principal`."""
    parser = subparsers.add_parser("principal", help="who may use the platform", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    add = commands.add_parser("add", help="make a principal and its credentials")
    add.add_argument("principal", help="u-…, unique in the installation")
    add.add_argument("--project", help="p-…, one's own or one below (default: one's own)")
    add.add_argument(
        "--right",
        action="append",
        metavar="NOUN",
        help=f"repeatable, of {', '.join(RIGHTS)} (default: one's own but iam)",
    )
    add.add_argument("--out", type=Path, help="file of the credentials (default: beside one's own)")
    add.add_argument("--offline", action="store_true", help="on the home itself, with all rights")
    add.set_defaults(handler=add_principal)
    listing = commands.add_parser("ls", help="principals of one's own project and those below")
    listing.add_argument("--project", help="only of this one")
    listing.set_defaults(handler=ls)
    rotate = commands.add_parser("rotate", help="another key; the former is refused, its connections closed")
    rotate.add_argument("principal", help="u-…, oneself or whom one may revoke")
    rotate.add_argument("--out", type=Path, help="file of the credentials (default: beside one's own)")
    rotate.set_defaults(handler=rotated)
    remove = commands.add_parser("rm", help="revoke: refused from now on, connections closed")
    remove.add_argument("principal", help="u-…")
    remove.add_argument("--keep-made", action="store_true", help="whom it made stays, as one's own")
    remove.set_defaults(handler=rm)
    for command in (add, listing, rotate, remove):
        options.client_options(command)


async def add_principal(args: argparse.Namespace) -> int:
    """Print the path of the credentials file. Raises SpecError, Conflict, GoneError, PolicyError."""
    if args.offline:
        home = Home((args.home or Home.default().path).absolute())
        made: Credentials = load(PLUGINS, "iam").create_principal(home, args.project or ROOT, args.principal)
        path = home.credentials / f"{made.principal}.json"
    else:
        path = args.out or _own_file(args).parent / f"{args.principal}.json"
        async with options.client_of(args) as client:
            made = await client.principals.create(args.principal, project=args.project, rights=args.right)
            await _saved(client, made, path)
    if args.json:
        emit({"project": made.project, "principal": made.principal, "credentials": str(path)})
    else:
        say(str(path))
    return 0


async def _saved(client: Client, made: Credentials, path: Path) -> None:
    """A principal whose secret cannot be kept is none."""
    try:
        made.save(path)
    except OSError as error:
        await client.principals.revoke(made.principal)
        raise SpecError(
            f"{path} cannot be written ({error.strerror}): choose another --out", field="out"
        ) from error


async def ls(args: argparse.Namespace) -> int:
    """A table, or a principal a line."""
    async with options.client_of(args) as client:
        principals = [one async for one in client.principals.list(project=args.project)]
    if args.json:
        for one in principals:
            emit(one)
    else:
        rows = ((one.principal, one.project, ", ".join(one.rights), one.by or "-") for one in principals)
        table(("principal", "project", "rights", "made by"), rows)
    return 0


async def rotated(args: argparse.Namespace) -> int:
    """Print the path of the credentials file. Raises GoneError, SpecError.

    The new key is kept before anybody hears of it: an answer that is lost locks nobody out.
    """
    path = args.out or _own_file(args).parent / f"{args.principal}.json"
    kept = path.with_name(f"{path.name}.new")
    async with options.client_of(args) as client:
        fresh = Credentials(Role.TENANT, new_seed(), _project_in(path), args.principal)
        _keep(fresh, kept)
        try:
            made = await client.principals.rotate(args.principal, seed=fresh.seed)
        except InfraError as error:
            raise type(error)(f"{error.message}; if it was done, the key is in {kept}") from error
        except DsecError:
            kept.unlink()
            raise
        made.save(path)
        kept.unlink()
    if args.json:
        emit({"project": made.project, "principal": made.principal, "credentials": str(path)})
    else:
        say(str(path))
    return 0


def _project_in(path: Path) -> str:
    """Of the credentials that are there; the answer tells it otherwise."""
    return Credentials.load(path).project if path.exists() else ""


def _keep(fresh: Credentials, path: Path) -> None:
    try:
        fresh.save(path)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written ({error.strerror}): choose another --out", field="out"
        ) from error


async def rm(args: argparse.Namespace) -> int:
    """Print the names that were revoked. Raises GoneError, PolicyError."""
    async with options.client_of(args) as client:
        names = await client.principals.revoke(args.principal, keep_made=args.keep_made)
    for name in names:
        if args.json:
            emit({"principal": name, "revoked": True})
        else:
            say(name)
    return 0


def _own_file(args: argparse.Namespace) -> Path:
    """The file that our own credentials came from."""
    if args.credentials is None and args.home is not None:
        return Path(Home(args.home).ready()["credentials"])
    return config.credentials_file(args.credentials)
