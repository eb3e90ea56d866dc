"""Creates through the whole control plane: SDK -> core -> scheduler -> simulated nodes, on one broker.

Open loop: a create is offered when its time has come, whatever became of the others, and its latency counts
from then. Afterwards everything is counted in the buckets, streams and journals: every acknowledged sandbox
must be claimed, journalled, registered, told and audited, each once. CPU is all in: broker, core, scheduler,
nodes and the client. Then the same with more than it can serve.

`DSEC_BENCH_RATE` (creates a second) and `DSEC_BENCH_SECONDS` change the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dsec.benchmarks.counting import Counted, counted
from dsec.benchmarks.load import open_loop, sim_options
from dsec.benchmarks.measure import Cpu, Tell, accounting, percentile, scratch
from dsec.bus.errors import DsecError, InfraError, Overloaded
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Received
from dsec.sdk import Client
from dsec.sdk.testing import platform

UVLOOP: Final = True
NODES: Final = 4
WARM_UP: Final = 2.0
HASTE: Final = 1.0
"""Seconds of patience under overload: no more than `retry_after`, so that nothing is repeated."""


@dataclass(slots=True)
class Load:
    """What became of the creates of one phase; latencies in ms, `made` maps keys to sandbox ids."""

    prefix: str
    offered: int = 0
    in_time: int = 0
    latencies: list[float] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)
    shed: int = 0
    errors: dict[str, int] = field(default_factory=dict)


async def run(tell: Tell) -> dict[str, Any]:
    """Keys: `offered_per_s`, `served_per_s` (acknowledged by the end of the time), `cpu_us` (of a create, all
    in), `p50_ms`, `p99_ms`, `floor_p99_ms`; `lost` (no answer, or missing somewhere), `duplicated`;
    `counted_…`: how many of the acknowledged each place has; `overload_…`, of which `shed` are typed.
    """
    rate = float(os.environ.get("DSEC_BENCH_RATE", "5000"))
    seconds = float(os.environ.get("DSEC_BENCH_SECONDS", "60"))
    with accounting() as cpu:
        tell("floor: bare requests and replies")
        floor = await _floor(rate, min(10.0, seconds))
        async with _platform(tell) as (part, client):
            figures = await _steady(tell, cpu, part, client, rate, seconds)
            return {**figures, "floor_p99_ms": floor, **await _overload(tell, client, rate, seconds)}


async def _steady(
    tell: Tell, cpu: Cpu, part: platform.Part, client: Client, rate: float, seconds: float
) -> dict[str, Any]:
    warm, load = Load("w"), Load("c")
    await _offer(client, warm, rate, WARM_UP)
    tell(f"{rate:g} creates a second for {seconds:g} s")
    before = cpu.ms()
    await _offer(client, load, rate, seconds)
    spent = cpu.ms() - before
    tell("counting claims, records, events, audits and journals")
    found = await counted(part, warm.made | load.made)
    return {
        "offered_per_s": round(load.offered / seconds, 1),
        "served_per_s": round(load.in_time / seconds, 1),
        "cpu_us": round(spent * 1000 / max(1, len(load.made)), 1),
        "p50_ms": round(percentile(load.latencies, 0.5), 2),
        "p99_ms": round(percentile(load.latencies, 0.99), 2),
        "lost": found.lost + sum(load.errors.values()),
        "duplicated": found.duplicated,
        **_details(found, load),
    }


def _details(found: Counted, load: Load) -> dict[str, Any]:
    return {
        "nodes": NODES,
        "errors": load.errors,
        "load_average": round(os.getloadavg()[0], 2),
        **{f"counted_{name}": count for name, count in found.counts.items()},
    }


async def _overload(tell: Tell, client: Client, rate: float, seconds: float) -> dict[str, Any]:
    offered, seconds = 2 * rate, min(20.0, seconds)
    tell(f"{offered:g} creates a second for {seconds:g} s")
    load = Load("o")
    await _offer(client, load, offered, seconds, timeout=HASTE)
    return {
        "overload_offered_per_s": round(load.offered / seconds, 1),
        "overload_served_per_s": round(load.in_time / seconds, 1),
        "overload_shed": load.shed,
        "overload_p99_ms": round(percentile(load.latencies or [0.0], 0.99), 2),
        "overload_errors": load.errors,
    }


async def _offer(client: Client, load: Load, rate: float, seconds: float, **options: Any) -> None:
    """Open loop; returns when every create has an answer or an error."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async def one(due: float, key: str) -> None:
        try:
            sandbox = await client.create(backend="sim", image="any", key=key, **options)
        except Overloaded as error:
            load.shed += error.retry_after is not None
            return
        except DsecError as error:
            load.errors[error.code] = load.errors.get(error.code, 0) + 1
            return
        now = loop.time()
        load.made[key] = sandbox.id
        load.in_time += now <= end
        load.latencies.append((now - due) * 1e3)

    load.offered = await open_loop(rate, seconds, lambda due, n: one(due, f"{load.prefix}-{n}"))


async def _floor(rate: float, seconds: float) -> float:
    """99th percentile in ms of bare requests and replies at the same rate: one broker, two connections."""
    home = Path(tempfile.mkdtemp(prefix="dsec-floor-", dir=scratch()))
    latencies: list[float] = []
    loop = asyncio.get_running_loop()
    try:
        async with (
            Broker.running(home) as broker,
            Wire.connect(broker.url, Credentials.new(Role.OPERATOR)) as server,
            Wire.connect(broker.url, Credentials.new(Role.CORE)) as client,
        ):
            running: set[asyncio.Task[None]] = set()

            def answer(message: Received) -> None:
                task = asyncio.create_task(server.publish(message.reply, message.data))
                running.add(task)
                task.add_done_callback(running.discard)

            async def one(due: float, _: int) -> None:
                await client.request("floor", b"x" * 200, timeout=10)
                latencies.append((loop.time() - due) * 1e3)

            await server.subscribe("floor", answer)
            await open_loop(rate, seconds, one)
    finally:
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
    return round(percentile(latencies, 0.99), 2)


@contextlib.asynccontextmanager
async def _platform(tell: Tell) -> AsyncIterator[tuple[platform.Part, Client]]:
    """A control plane, a process of simulated nodes, a connected client."""
    home = Path(tempfile.mkdtemp(prefix="dsec-bench-", dir=scratch()))
    try:
        tell("starting the control plane")
        async with platform.running(home, only="control") as part, _nodes(home), part.client() as client:
            await asyncio.sleep(1.5)  # the scheduler has heard every node
            yield part, client
    finally:
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)


@contextlib.asynccontextmanager
async def _nodes(home: Path) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dsec.sdk.cli", *sim_options(home, NODES), stdout=PIPE
    )
    try:
        assert process.stdout is not None
        if not await asyncio.wait_for(process.stdout.readline(), 60):
            raise InfraError("dsec sim did not start; its errors are above")
        yield process
    finally:
        process.terminate()
        await process.wait()
