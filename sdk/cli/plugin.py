"""`dsec plugin`: plugins and drivers in processes of their own.

dsec plugin add --node n-a container              credentials for a driver of a node
dsec plugin run container --kind driver           run it: joins the platform, leaves on SIGTERM
dsec plugin ls                                    what runs, as `nats micro ls` tells it
dsec plugin drain driver d-a-container            have it finish what it does and leave
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any, Final

import orjson

from dsec.bus import ids, processes, subjects
from dsec.bus.errors import InfraError, NodeLost, SpecError
from dsec.bus.handlers import result
from dsec.bus.home import Home, default_node
from dsec.bus.host import PLUGINS, load
from dsec.bus.metrics.serve import Exposed, exposed
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Received
from dsec.sdk.cli.loop import loop_factory
from dsec.sdk.cli.observing import observe, observing_options
from dsec.sdk.cli.output import emit, json_option, say, table

GATHER: Final = 1.0
"""Seconds in which services answer."""


def register(subparsers: Any) -> None:
    """Add the commands `plugin run`, `add`, `drain` and `ls`."""
    parser = subparsers.add_parser(
        "plugin",
        help="plugins and drivers in processes of their own",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    _register_run(commands)
    add = _command(commands, "add", "make credentials for a driver of a node", add_driver)
    add.add_argument("--node", default=default_node(), help="default: %(default)s")
    add.add_argument("name", help="of the driver, as in `dsec.drivers`")
    drain = _command(commands, "drain", "have a process finish its work and leave", drain_plugin)
    drain.add_argument("kind", help="core, scheduler, journal, iam, edge or driver")
    drain.add_argument("id", help="as `dsec plugin ls` tells it")
    _command(commands, "ls", "what runs", list_plugins)


def _register_run(commands: Any) -> None:
    run = _command(commands, "run", "run one", run_plugin)
    run.add_argument("target", help="entry point, or package.module:Class")
    run.add_argument("--kind", choices=("driver", "plugin"), default="plugin", help="default: %(default)s")
    run.add_argument("--node", help="of a driver or an edge (default: this machine's)")
    run.add_argument("--broker", help="URL (default: that of the platform on --home)")
    run.add_argument("--credentials", type=Path, help="default: those on --home")
    run.add_argument("--concurrency", type=int, help="requests that it works on at once")
    run.add_argument("--finish-within", type=float, default=processes.FINISH_WITHIN, metavar="SECONDS")
    run.add_argument(
        "--without-driver", action="append", default=[], metavar="NAME", help="of an edge: runs elsewhere"
    )
    observing_options(run)


def _command(commands: Any, name: str, text: str, handler: Any) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text)
    made.add_argument("--home", type=Path, default=Home.default().path, help="default: %(default)s")
    json_option(made)
    made.set_defaults(handler=handler)
    return made


# --- run


def run_plugin(args: argparse.Namespace) -> int:
    """Serve until asked to drain; the exit code: 0, or 1 when work was left unfinished."""
    options = _options(args)
    observe(args)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_serve(options, args.metrics, as_json=args.json))
    except OSError as error:
        raise InfraError.during(f"home {options.home.path}", error) from error


def _options(args: argparse.Namespace) -> processes.Options:
    home = Home(args.home.absolute())
    return processes.Options(
        target=args.target,
        kind=args.kind,
        url=args.broker or home.ready()["url"],
        credentials=Credentials.load(args.credentials or _default_credentials(args, home)),
        home=home,
        node=args.node or "",
        concurrency=args.concurrency,
        finish_within=args.finish_within,
        without=tuple(args.without_driver),
    )


def _default_credentials(args: argparse.Namespace, home: Home) -> Path:
    node = args.node or default_node()
    if args.kind == "driver":
        owner = ids.driver_on(node, args.target)
    elif ":" in args.target:
        raise SpecError("tell --credentials for package.module:Class", field="credentials")
    else:
        owner = node if args.target == "edge" else args.target
    return home.credentials / f"{owner}.json"


async def _serve(options: processes.Options, where: str, *, as_json: bool) -> int:
    task, stop = asyncio.current_task(), asyncio.Event()
    assert task is not None

    def asked_to_end() -> None:
        if stop.is_set():  # a second time: at once
            task.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked_to_end)
    with contextlib.suppress(asyncio.CancelledError):
        async with exposed(where) as metrics, processes.running(options) as process:
            process.asked = stop
            _tell(process, metrics, as_json=as_json)
            with metrics.serving():
                await stop.wait()
            return 1 if await process.drain(options.finish_within) else 0
    return 1


def _tell(process: processes.Process, metrics: Exposed, *, as_json: bool) -> None:
    service = process.service
    if as_json:
        at = {"metrics": metrics.url} if metrics.url else {}
        emit({"kind": service.name, "id": service.id, "pid": os.getpid(), **at})
    else:
        say(f"{service.name} {service.id} serves")


# --- credentials, operator


def add_driver(args: argparse.Namespace) -> int:
    """Print the path of the credentials file. Raises BadId, Conflict."""
    home = Home(args.home.absolute())
    made = load(PLUGINS, "iam").create_plugin(home, args.node, args.name)
    path = home.credentials / f"{made.owner}.json"
    if args.json:
        emit({"node": made.node, "driver": args.name, "id": made.owner, "credentials": str(path)})
    else:
        say(str(path))
    return 0


async def drain_plugin(args: argparse.Namespace) -> int:
    """Ask; it leaves once its work is done. Raises NodeLost when there is no such process of its own."""
    async with _operator(args) as wire:
        subject = subjects.plugin("drain", args.kind, args.id)
        try:
            answer = result((await wire.request(subject, b"", timeout=5)).data)
        except NodeLost as error:
            raise NodeLost(f"no {args.kind} {args.id} runs in a process of its own") from error
    if args.json:
        emit({"kind": args.kind, "id": args.id, **answer})
    return 0


async def list_plugins(args: argparse.Namespace) -> int:
    """Every part that answers `$SRV.PING`."""
    found: list[dict[str, Any]] = []

    def hear(message: Received) -> None:
        found.append(orjson.loads(message.data))

    async with _operator(args) as wire:
        inbox = f"{wire.inbox}.{ids.tail()}"
        await wire.subscribe(inbox, hear)
        await wire.publish("$SRV.PING", b"", inbox)
        await asyncio.sleep(GATHER)
    found.sort(key=lambda one: (one["name"], one["id"]))
    if args.json:
        for one in found:
            emit(one)
    else:
        told = (" ".join(f"{k}={v}" for k, v in one["metadata"].items()) for one in found)
        table(
            ("kind", "id", "version", ""),
            [(o["name"], o["id"], o["version"], t) for o, t in zip(found, told, strict=True)],
        )
    return 0


@contextlib.asynccontextmanager
async def _operator(args: argparse.Namespace) -> Any:
    home = Home(args.home.absolute())
    credentials = Credentials.load(home.credentials / "operator.json")
    async with Wire.connect(home.ready()["url"], credentials, "dsec plugin") as wire:
        yield wire
