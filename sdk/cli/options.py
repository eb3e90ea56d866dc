"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dsec.bus.errors import SpecError
from dsec.bus.home import Home
from dsec.sdk import Client
from dsec.sdk.cli.output import json_option, working

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def client_options(parser: argparse.ArgumentParser) -> None:
    """Where the platform is; `--json`."""
    group = parser.add_argument_group("platform")
    group.add_argument("--home", type=Path, help="home of a platform on this machine ($DSEC_HOME)")
    group.add_argument("--url", help="URL of the broker ($DSEC_URL)")
    group.add_argument("--credentials", type=Path, help="credentials file ($DSEC_CREDENTIALS)")
    json_option(parser)


@contextlib.asynccontextmanager
async def client_of(args: argparse.Namespace) -> AsyncIterator[Client]:
    """The client that the options name, connected while the block runs.

    Raises BrokerDown when no platform is known or it does not answer, Unauthenticated.
    """
    async with contextlib.AsyncExitStack() as stack:
        with working("connecting"):
            client = await stack.enter_async_context(_client(args))
        yield client


def _client(args: argparse.Namespace) -> Client:
    if args.home is None:
        return Client(args.url, args.credentials)
    ready = Home(args.home).ready()
    return Client(args.url or ready["url"], args.credentials or ready["credentials"])


def spec_options(parser: argparse.ArgumentParser) -> None:
    """What a sandbox is made of."""
    group = parser.add_argument_group("sandbox")
    group.add_argument("--image", required=True, metavar="BASE", help="base layer")
    group.add_argument("--workspace", metavar="LAYER", help="layer of the task")
    group.add_argument("--toolkit", action="append", default=[], metavar="LAYER", help="repeatable")
    group.add_argument("--pack", action="append", default=[], metavar="LAYER", help="repeatable")
    group.add_argument("--backend", default="container", help="default: %(default)s")
    group.add_argument("--cpu", type=float, help="cores")
    group.add_argument("--memory", type=amount, help="bytes, or with K, M, G")
    group.add_argument("--disk", type=amount, help="bytes of the writable layer, or with K, M, G")
    group.add_argument("--pids", type=int, help="processes and threads")
    group.add_argument("--nofile", type=int, help="descriptors per process")
    group.add_argument("--ttl", type=float, help="seconds until it is destroyed")
    group.add_argument("--idle-ttl", type=float, help="seconds without a request until it is destroyed")
    group.add_argument("--job", metavar="JOB", help="j-…, by which `ls` finds what belongs together")
    group.add_argument("--label", action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    group.add_argument("--key", help="idempotency key: the same key gives the same sandbox")


def spec_of(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments for `Client.create`; what was not given is left to the platform."""
    image = {
        "base": args.image,
        "workspace": args.workspace,
        "toolkits": args.toolkit,
        "packs": args.pack,
    }
    limits = {name: getattr(args, name) for name in ("cpu", "memory", "disk", "pids", "nofile")}
    optional = {"ttl": args.ttl, "idle_ttl": args.idle_ttl, "job": args.job}
    return {
        "backend": args.backend,
        "image": {name: value for name, value in image.items() if value},
        "limits": {name: value for name, value in limits.items() if value is not None},
        "labels": pairs(args.label, "label"),
        **{name: value for name, value in optional.items() if value is not None},
    }


def command_options(parser: argparse.ArgumentParser) -> None:
    """How a command is run; the command itself follows `--`."""
    group = parser.add_argument_group("command")
    group.add_argument("--timeout", type=float, help="seconds until its whole process tree is killed")
    group.add_argument("--cwd", help="working directory inside")
    group.add_argument("--user", help="user name or uid[:gid] inside")
    group.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    group.add_argument("--log-bytes", type=amount, help="captured output, bytes, or with K, M, G")
    group.add_argument("-i", "--interactive", action="store_true", help="send standard input")
    parser.add_argument("command", nargs="+", help="program and arguments")


def command_of(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments for `Sandbox.start`."""
    options = {"timeout": args.timeout, "cwd": args.cwd, "user": args.user, "log_bytes": args.log_bytes}
    return {name: value for name, value in options.items() if value is not None} | {
        "command": args.command,
        "env": pairs(args.env, "env"),
        "stdin_open": args.interactive,
    }


def amount(text: str) -> int:
    """`64M` as bytes. Raises ValueError."""
    digits = text.rstrip("kKmMgG")
    return int(float(digits) * UNITS[text[len(digits) :].lower()])


def pairs(items: list[str], field: str) -> dict[str, str]:
    """`NAME=VALUE` items as a dictionary. Raises SpecError naming `field`."""
    split = [item.partition("=") for item in items]
    for name, equals, _ in split:
        if not (name and equals):
            raise SpecError(f"--{field} takes NAME=VALUE, not {name!r}", field=field)
    return {name: value for name, _, value in split}
