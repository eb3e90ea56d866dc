"""`dsec up`: broker, control plane and node in one process, or one half of it.

With `--broker` the broker runs elsewhere, one server or a cluster that `dsec broker config` has configured.

Starts in the order of need (broker, iam, core, scheduler, journal, edge) and ends in reverse, each stage with
a deadline. The first start makes every credential. One line tells when all of it serves; with `--json` an
object: `url`, `credentials` (file of the first principal), `home`, `node`, `parts`, `pid`, `broker_pid`, and
`metrics` where it serves them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from dsec.bus import ids, registry, subjects
from dsec.bus.driver import Images
from dsec.bus.errors import InfraError, MissingTool, NodeLost, SpecError
from dsec.bus.handlers import result
from dsec.bus.home import Home, default_node
from dsec.bus.host import CONTROL_PLANE, PLUGINS, Context, drivers_of, images_of, load, plugin
from dsec.bus.membership import here
from dsec.bus.messages import Place
from dsec.bus.metrics.serve import exposed
from dsec.bus.micro import Service
from dsec.bus.nats import context as natscontext
from dsec.bus.nats.broker import Broker, BrokerAuth
from dsec.bus.nats.cluster import survey
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.directget import patiently
from dsec.bus.nats.servers import Servers
from dsec.bus.nats.wire import Wire
from dsec.sdk.cli.loop import collect_rarely, loop_factory
from dsec.sdk.cli.observing import observe, observing_options
from dsec.sdk.cli.output import emit, say

log = logging.getLogger(__name__)

DRAIN_WITHIN: Final = 25.0
"""Seconds in which a node ends, its sandboxes included when it is drained."""
CALLS: Final = "fncall"
"""The part of a node that does stateless calls, under the node's own credentials."""
JOIN_WITHIN: Final = 10.0
"""Seconds until a node must be known to the scheduler."""


@dataclass(frozen=True, slots=True)
class Options:
    """`only` one half; `broker`: URLs of one that runs elsewhere; `port` of one's own, 0: the former one;
    `without`: drivers and parts of the control plane that run in processes of their own.
    """

    home: Home
    only: Literal["control", "edge"] | None = None
    node: str = field(default_factory=default_node)
    port: int = 0
    broker: str = ""
    json: bool = False
    without: tuple[str, ...] = ()
    metrics: str = ""

    def __post_init__(self) -> None:
        ids.check("node", self.node)
        if self.broker:
            Servers.parse(self.broker)
        if self.broker and self.port:
            raise SpecError("--port is that of a broker of one's own: not with --broker", field="port")

    @property
    def control(self) -> bool:
        return self.only != "edge"

    @property
    def edge(self) -> bool:
        return self.only != "control"


def register(subparsers: Any) -> None:
    """Add the command `up`."""
    parser = subparsers.add_parser("up", help="run broker, control plane and node", description=__doc__)
    parser.add_argument(
        "--home",
        type=Path,
        default=Home.default().path,
        help="where everything is kept (default: %(default)s)",
    )
    parser.add_argument("--only", choices=("control", "edge"), help="run one half")
    parser.add_argument("--node", default=default_node(), help="id of this node (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="of the broker; 0: the former one, or a free one")
    parser.add_argument(
        "--broker",
        default="",
        metavar="URLS",
        help="of a broker that runs elsewhere, with commas: tls://nats-1:4222,tls://nats-2:4222?ca=FILE",
    )
    parser.add_argument(
        "--without-driver",
        action="append",
        default=[],
        metavar="NAME",
        help="a driver that `dsec plugin run` runs in a process of its own; repeatable",
    )
    parser.add_argument(
        "--without-plugin",
        action="append",
        default=[],
        choices=(*CONTROL_PLANE, CALLS),
        help="a part that `dsec plugin run` runs, or that is not wanted (fncall); repeatable",
    )
    parser.add_argument("--json", action="store_true", help="tell readiness as a JSON object")
    observing_options(parser)
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    options = Options(
        Home(args.home.absolute()),
        args.only,
        args.node,
        args.port,
        args.broker,
        json=args.json,
        without=(*args.without_driver, *args.without_plugin),
        metrics=args.metrics,
    )
    observe(args)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(up(options))
    except OSError as error:
        raise InfraError.during(f"home {options.home.path}", error) from error
    return 0


async def up(options: Options) -> None:
    """Run until SIGTERM or SIGINT: while starting they cancel, then they end cleanly, a second one at once.

    Raises AlreadyRunning, MissingTool, BrokerDown, Unauthenticated, DiskFull.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    serving, stop = False, asyncio.Event()

    def asked_to_end() -> None:
        if serving and not stop.is_set():
            stop.set()
        else:
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_end)
    with contextlib.suppress(asyncio.CancelledError):
        async with running(options) as ready:
            collect_rarely()
            serving = True
            _tell(ready, as_json=options.json)
            await stop.wait()


@contextlib.asynccontextmanager
async def running(options: Options) -> AsyncIterator[dict[str, Any]]:
    """The platform, or its half, while the block runs; the ready line's content."""
    home = options.home
    ready: dict[str, Any] = {"home": str(home.path), "node": options.node, "pid": os.getpid(), "parts": []}
    async with contextlib.AsyncExitStack() as stack:
        metrics = await stack.enter_async_context(exposed(options.metrics))
        ready |= {"metrics": metrics.url} if metrics.url else {}
        core: Wire | None = None
        if options.control:
            core = await stack.enter_async_context(_control_plane(options, ready))
        else:
            ready["url"] = options.broker or home.ready()["url"]
        if options.edge:
            await stack.enter_async_context(_edge(options, ready))
        if core is not None and options.edge:
            await _known(core, options.node)
        if options.control:
            home.announce(ready)
        with metrics.serving():
            yield ready


@contextlib.asynccontextmanager
async def _control_plane(options: Options, ready: dict[str, Any]) -> AsyncIterator[Wire | None]:
    """Broker, iam and the control plane's services; yields core's connection, if core runs here."""
    home, iam = options.home, load(PLUGINS, "iam")
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(home.held("control"))
        if not options.broker:
            iam.settle(home)
        prepared = iam.prepare(home, nodes=[options.node])
        url = options.broker
        if not url:
            broker = await stack.enter_async_context(
                Broker.running(home.broker, port=options.port, auth=prepared.auth)
            )
            stack.enter_context(_renewing(broker, home))
            url = broker.url
            ready["broker_pid"] = broker.pid
        else:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _not_ours)
        natscontext.write(home, url, prepared.credentials("operator"))
        ready |= {"url": url, "credentials": str(prepared.path("u-admin"))}

        async def start(name: str) -> Wire:
            context = Context(home.part(name))
            block = plugin(name, url, prepared.credentials(name), context)
            ready["parts"].append(name)
            return await stack.enter_async_context(block)

        await _streams(await start("iam"), prepared.credentials("core"), options, url)
        wires = {name: await start(name) for name in CONTROL_PLANE if name not in options.without}
        yield wires.get("core")


@contextlib.contextmanager
def _renewing(broker: Broker, home: Home) -> Iterator[None]:
    """On SIGHUP the broker is started anew with the keys of a rotation; everything else goes on meanwhile."""
    iam, loop, tasks = load(PLUGINS, "iam"), asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def renewed() -> BrokerAuth:
        iam.settle(home)
        auth: BrokerAuth = iam.prepare(home).auth
        return auth

    def hung_up() -> None:
        task = loop.create_task(broker.reconfigure(renewed))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGHUP, hung_up)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        for task in tasks:
            task.cancel()


def _not_ours() -> None:
    log.error("keys of a broker that runs elsewhere are taken up by `dsec broker config` and its servers")


async def _streams(iam: Wire, core: Credentials, options: Options, url: str) -> None:
    """Make what is stored, on as many servers as a cluster can have it. Raises BrokerDown, DiskFull."""
    replicas = 1
    if options.broker:
        told = await patiently(lambda: survey(iam, listed=len(Servers.parse(url).urls)))
        budget, replicas = registry.budget(told.storage), told.replicas
        await patiently(lambda: registry.ensure_identities(iam.jetstream, replicas=replicas))
    else:
        budget = registry.exec_budget(options.home.broker)
    async with Wire.connect(url, core, "setup") as wire:
        await patiently(lambda: registry.ensure(wire.jetstream, budget, replicas=replicas))


@contextlib.asynccontextmanager
async def _edge(options: Options, ready: dict[str, Any]) -> AsyncIterator[None]:
    """This machine as a node. Sandboxes outlive an edge that ran alone: its successor takes them over."""
    home, node = options.home, options.node
    with home.held(node):
        credentials = Credentials.load(home.credentials / f"{node}.json")
        async with (
            drivers_of(home, node, without=options.without) as drivers,
            images_of(home, node) as images,
        ):
            context = Context(home.node(node), node, drivers, images, drain=options.control)
            async with plugin("edge", ready["url"], credentials, context, stop_within=DRAIN_WITHIN):
                ready["parts"].append("edge")
                async with _calls(options, ready, credentials, images):
                    yield


@contextlib.asynccontextmanager
async def _calls(
    options: Options, ready: dict[str, Any], credentials: Credentials, images: Images
) -> AsyncIterator[None]:
    """Stateless calls on this node, where the machine can do them."""
    node, where = options.node, options.home.node(options.node) / "calls"
    context = Context(where, node, images=images)
    service = Service(CALLS, node, metadata=here(node=node))
    async with contextlib.AsyncExitStack() as stack:
        try:
            if CALLS not in options.without:
                block = plugin(CALLS, ready["url"], credentials, context, service=service)
                await stack.enter_async_context(block)
                ready["parts"].append(CALLS)
        except MissingTool as error:
            log.warning("stateless calls are left out: %s", error.message)
        yield


async def _known(core: Wire, node: str) -> None:
    """Return when the scheduler has heard of the node. Raises NodeLost when it does not."""
    body = Place(backend="", at=node).model_dump_json().encode()
    until = asyncio.get_running_loop().time() + JOIN_WITHIN
    while True:
        try:
            result((await core.request(subjects.SCHED_PLACE, body, timeout=JOIN_WITHIN)).data)
            return
        except NodeLost:
            if asyncio.get_running_loop().time() > until:
                raise
            await asyncio.sleep(0.05)


def _tell(ready: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit(ready)
    else:
        say(f"dsec is up: {', '.join(ready['parts'])} on {ready['url']}, home {ready['home']}")
        sys.stdout.flush()
