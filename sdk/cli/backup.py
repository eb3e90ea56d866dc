"""`dsec backup DIR`: streams and images of the installation in a home, while it runs. No secrets.

What is called DIR is whole; it is verified by `sha256sum -c SHA256SUMS` and by `dsec restore DIR`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dsec.bus.backup.making import backup
from dsec.bus.home import Home
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.sdk.cli.output import emit, json_option, say, size


def register(subparsers: Any) -> None:
    """Add the command `backup`."""
    parser = subparsers.add_parser("backup", help="back up streams and images", description=__doc__)
    parser.add_argument("directory", type=Path, help="is made, and must not exist")
    parser.add_argument("--home", type=Path, default=Home.default().path, help="of the installation")
    parser.add_argument("--url", default="", help="broker (default: that of the home)")
    parser.add_argument("--output", action="store_true", help="with what commands printed (EXEC)")
    json_option(parser)
    parser.set_defaults(handler=run)


async def run(args: argparse.Namespace) -> int:
    """The exit code. Raises SpecError, DiskFull, BrokerDown, Unauthenticated, InfraError."""
    home = Home(args.home.absolute())
    url = args.url or home.ready()["url"]
    operator = Credentials.load(home.credentials / "operator.json")
    async with Wire.connect(url, operator, "backup") as wire:
        made = await backup(wire, home, args.directory, output=args.output)
    if args.json:
        emit({"id": made.id, "directory": str(args.directory), **told(made)})
    else:
        say(f"{args.directory}: {text(made)}")
    return 0


def told(manifest: Any) -> dict[str, Any]:
    """What is in a back-up."""
    return {
        "streams": {kept.name: kept.state["messages"] for kept in manifest.streams},
        "layers": len(manifest.layers),
        "bytes": sum(kept.size for kept in manifest.streams)
        + sum(layer.size for layer in manifest.layers.values()),
    }


def text(manifest: Any) -> str:
    """The same in a line."""
    content = told(manifest)
    streams = ", ".join(f"{name} {count}" for name, count in content["streams"].items())
    return f"{size(content['bytes'])}; messages: {streams}; layers: {content['layers']}"
