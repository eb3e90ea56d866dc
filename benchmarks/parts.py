"""A control plane in pieces, so that one core can be killed: `python -m dsec.benchmarks.parts ROLE HOME`.

Roles: `plane` (broker, iam, scheduler), `core`, and `nodes-FIRST-LAST` (simulated nodes of these numbers,
configured by `HOME/sim.json`). Each prints a line when it serves and ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from dsec.bus import registry
from dsec.bus.errors import InfraError
from dsec.bus.home import Home
from dsec.bus.host import PLUGINS, Context, load, plugin
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.sdk.cli.loop import collect_rarely, loop_factory

START_WITHIN: Final = 60.0


@contextlib.asynccontextmanager
async def spawned(*argv: str) -> AsyncIterator[Process]:
    """`python -m …` that has printed its first line; ended with the block. Raises InfraError."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *argv, stdout=PIPE)
    try:
        assert process.stdout is not None
        if not await asyncio.wait_for(process.stdout.readline(), START_WITHIN):
            raise InfraError(f"{' '.join(argv)} did not start; its errors are above")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _plane(home: Home, stack: AsyncExitStack) -> None:
    prepared = load(PLUGINS, "iam").prepare(home)
    broker = await stack.enter_async_context(Broker.running(home.broker, auth=prepared.auth))
    for name in ("iam", "scheduler"):
        if name == "scheduler":
            async with Wire.connect(broker.url, prepared.credentials("core"), "setup") as wire:
                await registry.ensure(wire.jetstream, registry.exec_budget(home.broker))
        block = plugin(name, broker.url, prepared.credentials(name), Context(home.part(name)))
        await stack.enter_async_context(block)
    home.announce({"url": broker.url, "broker_pid": broker.pid, "home": str(home.path), "pid": os.getpid()})


async def _core(home: Home, stack: AsyncExitStack) -> None:
    credentials = Credentials.load(home.credentials / "core.json")
    await stack.enter_async_context(
        plugin("core", home.ready()["url"], credentials, Context(home.part("core")))
    )


async def _nodes(home: Home, role: str, stack: AsyncExitStack) -> None:
    sim, (first, last) = load(PLUGINS, "sim"), role.split("-")[1:]
    names = sim.names(int(last))[int(first) :]
    prepared = await asyncio.to_thread(load(PLUGINS, "iam").prepare, home, nodes=names)
    who = {name: prepared.credentials(name) for name in names}
    config = sim.config(home.path / "sim.json")
    await stack.enter_async_context(sim.fleet(home.ready()["url"], who, home.part(role), config))


async def _serve(role: str, home: Home) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        if role.startswith("nodes-"):
            await _nodes(home, role, stack)
        else:
            await {"plane": _plane, "core": _core}[role](home, stack)
        collect_rarely()
        print("serves", flush=True)
        await stop.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(sys.argv[1], Home(Path(sys.argv[2]))))
