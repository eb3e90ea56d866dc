"""`dsec broker config`: the configuration of a cluster of nats-servers for a home.

dsec broker config --home H --out DIR --server nats-1 --server nats-2 --server nats-3
dsec up --only control --home H --broker 'tls://nats-1:4222,tls://nats-2:4222,tls://nats-3:4222?ca=DIR/ca.pem'

Writes one directory per server with its configuration, certificate and key; each goes to its machine, where
`nats-server -c nats.json` runs on it. Run again it makes new certificates by the same CA, and takes over keys
that were rotated: restart the servers one by one. `ca.key` in DIR signs all this: keep it off the servers.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any, Final

from dsec.bus.errors import InfraError, SpecError
from dsec.bus.home import Home
from dsec.bus.host import PLUGINS, load
from dsec.bus.nats.cluster import STORE_BYTES, Cluster, Server
from dsec.bus.nats.servers import PORT
from dsec.sdk.cli.options import amount
from dsec.sdk.cli.output import emit, json_option, say

ROUTES: Final = 6222
MONITOR: Final = 8222


def register(subparsers: Any) -> None:
    """Add the command `broker config`."""
    parser = subparsers.add_parser("broker", help="a broker of several servers")
    commands = parser.add_subparsers(required=True, metavar="command")
    config = commands.add_parser(
        "config",
        help="write the servers' configuration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    config.add_argument("--home", type=Path, default=Home.default().path, help="default: %(default)s")
    config.add_argument("--out", type=Path, required=True, metavar="DIR", help="one directory per server")
    config.add_argument(
        "--server",
        action="append",
        required=True,
        metavar="NAME[=HOST[:PORT[:ROUTES]]]",
        help=f"repeatable; HOST is NAME unless given, ports are {PORT} and {ROUTES}",
    )
    config.add_argument("--seen-at", type=Path, metavar="DIR", help="where each server sees its directory")
    config.add_argument("--listen", default="0.0.0.0", metavar="ADDRESS", help="default: %(default)s")  # noqa: S104 - of a machine or container of its own
    config.add_argument(
        "--store", type=amount, default=STORE_BYTES, metavar="BYTES", help="of disk, for each server (64G)"
    )
    config.add_argument("--monitor", type=int, default=MONITOR, help="port on loopback, 0: none")
    json_option(config)
    config.set_defaults(handler=run)


async def run(args: argparse.Namespace) -> int:
    """Print what to give to `--broker`. Raises SpecError, MissingTool, InfraError."""
    members = tuple(_server(text, args.listen, args.monitor) for text in args.server)
    home, out = Home(args.home.absolute()), args.out.absolute()
    iam = load(PLUGINS, "iam")
    try:
        iam.settle(home)
        cluster = Cluster(members, iam.prepare(home).auth, args.seen_at, args.store)
        await asyncio.to_thread(cluster.write, out)
    except OSError as error:
        raise InfraError.during(f"writing {out}", error) from error
    url = str(cluster.servers(out / "ca.pem"))
    if args.json:
        emit({"url": url, "ca": str(out / "ca.pem"), "servers": [str(out / one.name) for one in members]})
    else:
        say(url)
    return 0


def _server(text: str, listen: str, monitor: int) -> Server:
    name, _, where = text.partition("=")
    host, *ports = (where or name).split(":")
    if not name or "/" in name or not host or len(ports) > 2 or not all(map(str.isdecimal, ports)):
        raise SpecError(f"--server takes NAME[=HOST[:PORT[:ROUTES]]], not {text!r}", field="server")
    port, routes = (int(given) for given in (*ports, *(str(PORT), str(ROUTES))[len(ports) :]))
    return Server(name, host, port, routes, listen, monitor)
