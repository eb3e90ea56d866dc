"""`dsec sim`: simulated nodes beside a running control plane (`dsec up --only control`), without root.

Each node gets a credential of its own. Sandboxes survive the end of this process, `kill -9` included: the
next `dsec sim` on the same home has them again. One line tells when all nodes serve; with `--json` an object:
`url`, `nodes`, `pid`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from dsec.bus.errors import SpecError
from dsec.bus.home import Home
from dsec.bus.host import PLUGINS, load
from dsec.bus.metrics.serve import exposed
from dsec.bus.nats.credentials import Credentials
from dsec.sdk.cli.loop import collect_rarely, loop_factory
from dsec.sdk.cli.observing import observe, observing_options
from dsec.sdk.cli.output import emit, json_option, say

MOST = 1000
"""Nodes of one process: each has a connection, and descriptors are finite."""


def register(subparsers: Any) -> None:
    """Add the command `sim`."""
    parser = subparsers.add_parser("sim", help="run simulated nodes", description=__doc__)
    parser.add_argument("--home", type=Path, default=Home.default().path, help="home of the control plane")
    parser.add_argument("--nodes", type=int, default=4, help="how many (default: %(default)s)")
    parser.add_argument("--config", type=Path, help="JSON file: sizes, delays, faults, deaths, outcomes")
    json_option(parser)
    observing_options(parser)
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. Raises SpecError, AlreadyRunning, BrokerDown."""
    if not 0 < args.nodes <= MOST:
        raise SpecError(f"--nodes must lie between 1 and {MOST}", field="nodes")
    observe(args)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(Home(args.home.absolute()), args))
    return 0


async def _serve(home: Home, args: argparse.Namespace) -> None:
    sim, iam = load(PLUGINS, "sim"), load(PLUGINS, "iam")
    config, url, names = sim.config(args.config), home.ready()["url"], sim.names(args.nodes)
    with home.held("sim"):
        prepared = await asyncio.to_thread(iam.prepare, home, nodes=names)
        credentials: dict[str, Credentials] = {name: prepared.credentials(name) for name in names}
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with exposed(args.metrics) as metrics, sim.fleet(url, credentials, home.part("sim"), config):
            collect_rarely()
            at = {"metrics": metrics.url} if metrics.url else {}
            _tell({"url": url, "nodes": names, "pid": os.getpid(), **at}, as_json=args.json)
            with metrics.serving():
                await stop.wait()


def _tell(ready: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit(ready)
    else:
        say(f"{len(ready['nodes'])} simulated nodes serve on {ready['url']}")
