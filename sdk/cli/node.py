"""`dsec node ls|drain|fail`: the operator's view of the nodes, and the operator's word on them.

It uses the operator's credentials, which the control plane keeps in its home.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from dsec.bus import ids, subjects
from dsec.bus.handlers import result
from dsec.bus.home import Home
from dsec.bus.messages import Drained, DrainNode, FailNode, Fleet, NodeStatus
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire
from dsec.sdk.cli.output import emit, json_option, say, table

TIMEOUT: Final = 5.0
FAIL_TIMEOUT: Final = 60.0
"""Seconds in which some thousand records are written."""
LOOK: Final = 0.5


def register(subparsers: Any) -> None:
    """Add the command `node`."""
    parser = subparsers.add_parser("node", help="list, drain and fail nodes", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    listing = commands.add_parser("ls", help="every node, as the watcher sees it")
    _platform(listing)
    listing.set_defaults(handler=ls)
    drain = commands.add_parser("drain", help="a node takes nothing new")
    drain.add_argument("--destroy", action="store_true", help="destroy what it has")
    drain.add_argument("--wait", action="store_true", help="return when it is empty")
    drain.add_argument("--undo", action="store_true", help="it takes work again")
    drain.set_defaults(handler=drained)
    fail = commands.add_parser("fail", help="the node is dead: its sandboxes fail now (infra)")
    fail.add_argument("--reason", default="the operator's word", help="told to those who ask")
    fail.set_defaults(handler=failed)
    for command in (drain, fail):
        command.add_argument("node", help="n-…")
        _platform(command)


def _platform(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("platform")
    group.add_argument("--home", type=Path, default=Home.default().path, help="default: %(default)s")
    group.add_argument("--url", help="URL of the broker (default: the one that runs on the home)")
    group.add_argument("--credentials", type=Path, help="the operator's (default: the home's)")
    json_option(parser)


async def ls(args: argparse.Namespace) -> int:
    """A table, or a node a line."""
    async with _operator(args) as wire:
        answer = await wire.request(subjects.SCHED_FLEET, b"{}", timeout=TIMEOUT)
    fleet = Fleet.model_validate(result(answer.data))
    if args.json:
        for node in fleet.nodes:
            emit(node)
    else:
        columns = ("node", "standing", "silent", "life", "sandboxes", "draining", "clock", "why")
        table(columns, (_row(node) for node in fleet.nodes))
    return 0


async def drained(args: argparse.Namespace) -> int:
    """Ask the node itself; with `--wait` until it is empty."""
    async with _operator(args) as wire:
        while True:
            body = DrainNode(**_envelope(TIMEOUT), destroy=args.destroy, undo=args.undo)
            answer = Drained.model_validate(await _ask(wire, subjects.node_drain(args.node), body, TIMEOUT))
            if not (args.wait and answer.draining and answer.sandboxes):
                break
            await asyncio.sleep(LOOK)
    if args.json:
        emit(answer)
    else:
        state = "draining" if answer.draining else "taking work"
        say(f"{args.node} is {state} with {answer.sandboxes} sandboxes")
    return 0


async def failed(args: argparse.Namespace) -> int:
    """Returns when every record says so. Raises GoneError for a node that never was."""
    ids.check("node", args.node)
    async with _operator(args) as wire:
        body = FailNode(**_envelope(FAIL_TIMEOUT), node=args.node, reason=args.reason)
        node = NodeStatus.model_validate(await _ask(wire, subjects.SCHED_FAIL, body, FAIL_TIMEOUT))
    if args.json:
        emit(node)
    else:
        say(f"{node.node} is failed; its sandboxes are failed (infra)")
    return 0


@contextlib.asynccontextmanager
async def _operator(args: argparse.Namespace) -> AsyncIterator[Wire]:
    home = Home(args.home.absolute())
    credentials = args.credentials or home.credentials / f"{Role.OPERATOR.value}.json"
    url = args.url or str(home.ready()["url"])
    async with Wire.connect(url, Credentials.load(credentials), "dsec node") as wire:
        yield wire


async def _ask(wire: Wire, subject: str, body: BaseModel, timeout: float) -> Any:
    return result((await wire.request(subject, body.model_dump_json().encode(), timeout=timeout)).data)


def _envelope(seconds: float) -> dict[str, Any]:
    return {"op": ids.new_operation(), "deadline": int((time.time() + seconds) * 1000)}


def _row(node: NodeStatus) -> tuple[object, ...]:
    standing = f"{node.standing.value} (held)" if node.held else node.standing.value
    draining = "yes" if node.draining else "-"
    life = f"{node.epoch}" if node.epoch > node.fenced else f"{node.epoch} (over)"
    clock = f"{node.offset:+d} ms"
    return node.node, standing, f"{node.silent:.0f} s", life, node.sandboxes, draining, clock, node.reason
