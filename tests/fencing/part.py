"""One part of a platform as a process of its own, with the durations of fencing scaled down: see `main`.

python -m tests.fencing.part control HOME HOST     broker, iam, core, journal
python -m tests.fencing.part control HOME URL      the same on a cluster of brokers that run elsewhere
python -m tests.fencing.part watcher HOME URL      scheduler with its watcher
python -m tests.fencing.part edge HOME URL NODE    node with the container backend
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from dsec.bus.core.service import Core
from dsec.bus.home import Home
from dsec.bus.host import Context
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.directget import patiently
from dsec.bus.nats.wire import Wire
from dsec.bus.registry import ensure
from dsec.plugins.container import ContainerDriver
from dsec.plugins.edge import Edge
from dsec.plugins.edge import fencing as edge_fencing
from dsec.plugins.iam import Iam
from dsec.plugins.images import ErofsImages
from dsec.plugins.images.base import base_image
from dsec.plugins.journal import Journal
from dsec.plugins.scheduler import Scheduler
from dsec.plugins.scheduler.silence import Patience

FREEZE, FAIL, SUSPECT = map(float, os.environ.get("DSEC_TESTS_FENCING", "2.5 5.0 1.5").split())
EDGE = edge_fencing.Patience(probe=0.25, freeze=FREEZE)
WATCHER = Patience(suspect=SUSPECT, fail=FAIL, grace=2.0, tick=0.25, window=12.0)
NODES = ("n-a", "n-b", "n-c")
Ready = dict[str, Any]


def wire(home: Home, url: str, owner: str) -> AbstractAsyncContextManager[Wire]:
    return Wire.connect(url, Credentials.load(home.credentials / f"{owner}.json"), owner)


@contextlib.asynccontextmanager
async def control(home: Home, host: str) -> AsyncIterator[Ready]:
    prepared = Iam.prepare(home, nodes=NODES)
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        url, replicas = host, 3
        if "://" not in host:
            url, replicas = (await enter(Broker.running(home.broker, host=host, auth=prepared.auth))).url, 1
        iam = await enter(wire(home, url, "iam"))
        await enter(Iam.running(iam, Context(home.part("iam"))))
        core = await enter(wire(home, url, "core"))
        await patiently(lambda: ensure(core.jetstream, 256 << 20, replicas=replicas))
        await enter(Core.running(core, Context(home.part("core"))))
        journal = await enter(wire(home, url, "journal"))
        await enter(Journal.running(journal, Context(home.part("journal"))))
        yield {"url": url, "admin": str(prepared.path("u-admin"))}


@contextlib.asynccontextmanager
async def watcher(home: Home, url: str) -> AsyncIterator[Ready]:
    async with (
        wire(home, url, "scheduler") as bus,
        Scheduler.running(bus, Context(home.part("scheduler")), listen=0.5, patience=WATCHER),
    ):
        yield {}


@contextlib.asynccontextmanager
async def edge(home: Home, url: str, node: str) -> AsyncIterator[Ready]:
    images = ErofsImages(home.images(node))
    await images.import_file("base", await base_image(), "base")
    driver = ContainerDriver(home.driver(node, "container"))
    await driver.check()
    context = Context(home.node(node), node, {"container": driver}, images, drain=True)
    try:
        async with wire(home, url, node) as bus, Edge.running(bus, context, patience=EDGE):
            yield {}
    finally:
        await images.close()
        await driver.close()


PARTS: dict[str, Callable[..., AbstractAsyncContextManager[Ready]]] = {
    "control": control,
    "watcher": watcher,
    "edge": edge,
}


async def main(kind: str, home: str, *rest: str) -> None:
    """Serve until SIGTERM; one line of JSON tells when it does."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with PARTS[kind](Home(Path(home)), *rest) as ready:
        sys.stdout.write(json.dumps(ready | {"pid": os.getpid()}) + "\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main(*sys.argv[1:]))
