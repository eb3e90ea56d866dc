"""32,000 sandboxes in one call over 160 simulated nodes; then lists and a killed core beside 380,000 live.

A batch counts as running when the client has heard that every sandbox runs and the registry has a record of
each; all records are read afterwards and compared. Broker, core, scheduler, nodes and client share the
machine. `DSEC_BENCH_COUNT` and `DSEC_BENCH_LIVE` change the sizes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import orjson

from dsec.benchmarks.load import SIM
from dsec.benchmarks.measure import Cpu, Tell, accounting, percentile, scratch
from dsec.benchmarks.parts import spawned
from dsec.bus import subjects
from dsec.bus.errors import InfraError
from dsec.bus.home import Home
from dsec.bus.host import PLUGINS, load
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.directget import DirectGet
from dsec.bus.nats.wire import Wire
from dsec.sdk import Client
from dsec.sdk.jobs import Batch

UVLOOP: Final = True
NODES: Final = 160
PROCESSES: Final = 2
"""Of simulated nodes: one for each core of the reference machine."""
PROJECTS: Final = 50
SPEC: Final[dict[str, Any]] = {"backend": "sim", "image": "any"}
LISTS: Final = 20


async def run(tell: Tell) -> dict[str, Any]:
    """Keys: see the project's SPECIFICATION.md, "Batches"."""
    count = int(os.environ.get("DSEC_BENCH_COUNT", "32000"))
    live = int(os.environ.get("DSEC_BENCH_LIVE", "380000"))
    with accounting() as cpu:  # processes that start from here on are in
        async with _platform(tell) as home:
            figures = await _batch(tell, cpu, home, count)
            if live:
                figures |= await _beside(tell, home, count, live)
            return figures


async def _batch(tell: Tell, cpu: Cpu, home: Home, count: int) -> dict[str, Any]:
    async with _client(home, 0) as client, _reader(home) as (wire, reader):
        await (await client.create_many(100, **SPEC)).wait()
        before = await _registered(wire)
        tell(f"{count} sandboxes in one call")
        spent, started = cpu.ms(), time.perf_counter()
        batch = await client.create_many(count, **SPEC)
        acknowledged = time.perf_counter() - started
        progress = await batch.wait()
        told = time.perf_counter() - started
        while await _registered(wire) < before + progress.running:  # noqa: ASYNC110 - counted, not told
            await asyncio.sleep(0.02)
        running = time.perf_counter() - started
        spent = cpu.ms() - spent
        tell("reading every record")
        lost, twice = await _compared(reader, batch)
    return {
        "count": count,
        "nodes": NODES,
        "acknowledged_s": round(acknowledged, 2),
        "told_s": round(told, 2),
        "running_s": round(running, 2),
        "cpu_us": round(spent * 1000 / count, 1),
        "failed": progress.failed,
        "lost": lost,
        "duplicated": twice,
        "load_average": round(os.getloadavg()[0], 2),
    }


async def _beside(tell: Tell, home: Home, count: int, live: int) -> dict[str, Any]:
    """With `live` sandboxes in all: lists, a killed core, and what memory that takes."""
    each = -(-(live - count) // (PROJECTS - 1))
    started = time.perf_counter()
    for number in range(1, PROJECTS):
        tell(f"filling up to {live}: {count + (number - 1) * each}")
        async with _client(home, number) as client:
            await (await client.create_many(each, **SPEC)).wait()
    filled = time.perf_counter() - started
    async with _client(home, PROJECTS // 2) as client, _reader(home) as (wire, _):
        total = await _registered(wire)
        latencies = [await _first_page(client) for _ in range(LISTS)]
        restart, core = await _killed(tell, home, client)
        megabytes = {"broker_mb": _mb(home.ready()["broker_pid"]), "core_mb": core}
    return {
        "live": total,
        "filled_s": round(filled, 1),
        "project": each,
        "list_ms": round(percentile(latencies, 0.5), 1),
        "list_p95_ms": round(percentile(latencies, 0.95), 1),
        "core_restart_s": round(restart, 2),
        **megabytes,
    }


async def _first_page(client: Client) -> float:
    started = time.perf_counter()
    found = 0
    async for _ in client.list():
        found += 1
        if found == 1000:
            break
    if found < 1000:
        raise InfraError(f"a project of thousands lists {found}")
    return (time.perf_counter() - started) * 1e3


async def _killed(tell: Tell, home: Home, client: Client) -> tuple[float, int]:
    """Seconds from the kill of the only core until its successor has created a sandbox and listed a page;
    MB of the successor."""
    tell("killing the core")
    pid = int((home.part("core") / "bench.pid").read_text())
    os.kill(pid, 9)
    started = time.perf_counter()
    async with spawned("dsec.benchmarks.parts", "core", str(home.path)) as successor:
        await client.create(**SPEC)
        await _first_page(client)
        return time.perf_counter() - started, _mb(successor.pid)


async def _compared(reader: DirectGet, batch: Batch) -> tuple[int, int]:
    """How many of the batch are not running in the registry, and how many of its job are there besides."""
    wanted, found, others = set(batch.ids.values()), set[str](), 0
    sequence, job = 1, batch.job
    while True:
        page = await reader.batch(
            "KV_registry", subjects.kv(subjects.REGISTRY_BUCKET, ">"), sequence, count=1000, max_bytes=4 << 20
        )
        for stored in page.messages:
            record = orjson.loads(stored.data)
            if record["spec"]["job"] == job:
                good = record["sandbox"] in wanted and record["state"] == "running"
                found.add(record["sandbox"]) if good else None
                others += not good
        if not page.pending or not page.messages:
            return len(wanted - found) + len(batch) - len(wanted), others
        sequence = page.messages[-1].sequence + 1


async def _registered(wire: Wire) -> int:
    info = await wire.jetstream.stream_info("KV_registry")
    return int(info.state.messages)


def _mb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024
    raise InfraError(f"process {pid} has ended")


@contextlib.asynccontextmanager
async def _client(home: Home, project: int) -> AsyncIterator[Client]:
    path = home.credentials / f"u-batch{project}.json"
    if not path.exists():
        iam = load(PLUGINS, "iam")
        await asyncio.to_thread(iam.create_principal, home, f"p-batch{project}", f"u-batch{project}")
    async with Client(home.ready()["url"], path) as client:
        yield client


@contextlib.asynccontextmanager
async def _reader(home: Home) -> AsyncIterator[tuple[Wire, DirectGet]]:
    who = Credentials.load(home.credentials / "operator.json")
    async with Wire.connect(home.ready()["url"], who) as wire, DirectGet.running(wire) as reader:
        yield wire, reader


@contextlib.asynccontextmanager
async def _platform(tell: Tell) -> AsyncIterator[Home]:
    """Broker, iam and scheduler; one core; the nodes, in `PROCESSES` processes; all end with the block."""
    home = Home(Path(tempfile.mkdtemp(prefix="dsec-bench-", dir=scratch())))
    try:
        async with contextlib.AsyncExitStack() as stack:
            tell("starting the control plane")
            await stack.enter_async_context(spawned("dsec.benchmarks.parts", "plane", str(home.path)))
            core = await stack.enter_async_context(spawned("dsec.benchmarks.parts", "core", str(home.path)))
            (home.part("core") / "bench.pid").write_text(str(core.pid))
            tell(f"starting {NODES} nodes")
            config = home.path / "sim.json"
            config.write_bytes(orjson.dumps(SIM))
            share = NODES // PROCESSES
            for first in range(0, NODES, share):
                role = f"nodes-{first}-{first + share}"
                await stack.enter_async_context(spawned("dsec.benchmarks.parts", role, str(home.path)))
            await asyncio.sleep(1.5)  # the scheduler has heard every node
            yield home
    finally:
        await asyncio.to_thread(shutil.rmtree, home.path, ignore_errors=True)
