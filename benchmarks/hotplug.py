"""Killing parts of the platform under load: core, scheduler and a driver, each in a process of its own.

Every 2 s one process of each kind is killed with -9 and started again, while creates are offered, open loop,
to simulated nodes and, few, to containers of a real node whose driver is killed too. Two cores and two
schedulers run, so that one of each is left. Afterwards claims, journals and registry are counted: what was
acknowledged must be there, once.

`DSEC_BENCH_RATE` and `DSEC_BENCH_CONTAINERS` (creates a second on simulated nodes, on containers) and
`DSEC_BENCH_SECONDS` change the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dsec.benchmarks.counting import claims, journalled, last_tokens
from dsec.benchmarks.load import open_loop, sim_options
from dsec.benchmarks.measure import Tell, percentile, scratch
from dsec.bus import subjects
from dsec.bus.errors import DsecError, Failure
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.directget import DirectGet
from dsec.bus.nats.wire import Wire
from dsec.sdk import Client
from dsec.sdk.testing import platform
from dsec.sdk.testing.plugin import add_base, default_base

EVERY: Final = 2.0
"""Seconds between two kills of the same kind of process."""
NODES: Final = 8


@dataclass(slots=True)
class Load:
    """What became of the creates: sandbox ids by key, latencies in ms, errors by code."""

    made: dict[str, str] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    others: int = 0
    """Errors that are not the platform's: none is expected."""
    kills: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Victim:
    """A process that is killed and started again, `argv` being its command line."""

    kind: str
    argv: tuple[str, ...]
    log: Path
    part: platform.Part | None = None

    async def start(self) -> None:
        self.part = await platform.started(self.argv, self.log)

    async def strike(self) -> None:
        assert self.part is not None
        await self.part.kill()
        await self.start()


async def run(tell: Tell) -> dict[str, Any]:
    """Keys: `lost`, `duplicated`, `p99_ms`, and what was offered, served, killed and told as an error."""
    rate = float(os.environ.get("DSEC_BENCH_RATE", "1000"))
    containers = float(os.environ.get("DSEC_BENCH_CONTAINERS", "2"))
    seconds = float(os.environ.get("DSEC_BENCH_SECONDS", "60"))
    return await measure(tell, rate, containers, seconds)


async def measure(tell: Tell, rate: float, containers: float, seconds: float) -> dict[str, Any]:
    """As `run`; `containers` a second are made beside `rate` simulated sandboxes, and destroyed at once."""
    load = Load()
    async with _platform(tell) as (part, victims), part.client() as client:
        tell(f"{rate:g} creates a second for {seconds:g} s, a kill of each kind every {EVERY:g} s")
        over = asyncio.Event()
        striking = asyncio.create_task(_strike(victims, load, over))
        began = asyncio.get_running_loop().time()
        offered = await asyncio.gather(
            _offer(client, load, "sim", rate, seconds),
            _offer(client, load, "container", containers, seconds),
        )
        took = asyncio.get_running_loop().time() - began
        over.set()
        await striking  # all that was killed runs again
        tell("counting claims, journals and the registry")
        lost, duplicated = await _count(part, load)
        await _destroy_containers(client)
    return {
        "lost": lost + load.others,
        "duplicated": duplicated,
        "p50_ms": round(percentile(load.latencies, 0.5), 2),
        "p99_ms": round(percentile(load.latencies, 0.99), 2),
        "max_ms": round(max(load.latencies), 2),
        "offered": sum(offered),
        "acknowledged": len(load.made),
        "served_per_s": round(len(load.made) / took, 1),
        "errors": dict(load.errors),
        **{f"{kind}_kills": n for kind, n in load.kills.items()},
    }


# --- the load


async def _offer(client: Client, load: Load, backend: str, rate: float, seconds: float) -> int:
    """Open loop; returns when every create has an answer or an error."""
    return await open_loop(
        rate, seconds, lambda due, number: _one(client, load, backend, f"{backend}-{number}", due)
    )


async def _one(client: Client, load: Load, backend: str, key: str, due: float) -> None:
    image = "any" if backend == "sim" else "base"
    try:
        sandbox = await client.create(backend=backend, image=image, key=key)
        load.made[key] = sandbox.id
        load.latencies.append((asyncio.get_running_loop().time() - due) * 1e3)
        if backend != "sim":
            await sandbox.run(["true"])
    except DsecError as error:
        load.errors[error.code] += 1
        load.others += error.failure is not Failure.INFRA


async def _destroy_containers(client: Client) -> None:
    """Leave nothing on this machine; simulated sandboxes are entries in a file."""
    async for record in client.list():
        if record.spec.backend == "container" and record.state != "destroyed":
            await (await client.attach(record.sandbox)).destroy()


async def _strike(victims: list[Victim], load: Load, over: asyncio.Event) -> None:
    """One process of each kind every `EVERY` seconds, the kinds in turn, until `over`."""
    kinds: dict[str, list[Victim]] = {}
    for victim in victims:
        kinds.setdefault(victim.kind, []).append(victim)

    async def one(kind: str, delay: float) -> None:
        loop, turn = asyncio.get_running_loop(), 0
        due = loop.time() + delay
        while not over.is_set():
            due += EVERY
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), max(0.0, due - loop.time()))
                return
            await kinds[kind][turn % len(kinds[kind])].strike()
            load.kills[kind] += 1
            turn += 1

    await asyncio.gather(*(one(kind, at * EVERY / len(kinds)) for at, kind in enumerate(kinds)))


# --- counting


async def _count(part: platform.Part, load: Load) -> tuple[int, int]:
    """Acknowledged sandboxes that are missing somewhere, and sandboxes that no claim names."""
    await asyncio.sleep(2.0)
    home = Path(part.ready["home"])
    who = Credentials.load(home / "credentials" / "operator.json")
    async with Wire.connect(part.url, who) as wire, DirectGet.running(wire) as reader:
        claimed = await claims(reader)
        registered = await last_tokens(reader, "KV_registry", subjects.kv(subjects.REGISTRY_BUCKET, ">"))
    kept = await asyncio.to_thread(journalled, home / "parts" / "sim" / "journal.jsonl")
    lost = sum(
        claimed.get(key) != sandbox
        or sandbox not in registered
        or (key.startswith("sim-") and sandbox not in kept)
        for key, sandbox in load.made.items()
    )
    named = set(claimed.values())
    strangers = {one for one in (*registered, *kept) if one not in named}
    twice = sum(n - 1 for n in kept.values()) + len(load.made) - len(set(load.made.values()))
    return lost, len(strangers) + twice


# --- the platform


@contextlib.asynccontextmanager
async def _platform(tell: Tell) -> AsyncIterator[tuple[platform.Part, list[Victim]]]:
    """Broker, iam and journal; a node; simulated nodes; and those that will be killed."""
    home = Path(tempfile.mkdtemp(prefix="dsec-bench-", dir=scratch()))
    try:
        tell("importing the base image")
        await add_base(home, await default_base())
        async with contextlib.AsyncExitStack() as stack:
            tell("starting the platform")
            apart = ["--without-plugin", "core", "--without-plugin", "scheduler"]
            control = await platform.spawn(home, only="control", options=apart)
            stack.push_async_callback(control.stop)
            victims = [_victim(home, kind, at) for at in (0, 1) for kind in ("core", "scheduler")]
            await platform.command("plugin", "add", "--home", str(home), "container")
            driver = _victim(home, "container", 0, "--kind", "driver")
            stack.push_async_callback(_stop, [*victims, driver])
            for victim in (*victims, driver):
                await victim.start()
            await _nodes(home, stack)
            await platform.known(control, "container")
            await asyncio.sleep(1.5)  # the schedulers have heard every node
            yield control, [*victims, driver]
    finally:
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)


def _victim(home: Path, kind: str, at: int, *options: str) -> Victim:
    argv = ("plugin", "run", "--home", str(home), "--json", *options, kind)
    return Victim("driver" if options else kind, argv, home / f"{kind}-{at}.log")


async def _nodes(home: Path, stack: contextlib.AsyncExitStack) -> None:
    stack.push_async_callback((await platform.started(sim_options(home, NODES), home / "sim.log")).stop)
    edge = await platform.spawn(home, only="edge", options=["--without-driver", "container"])
    stack.push_async_callback(edge.stop)


async def _stop(victims: list[Victim]) -> None:
    for victim in victims:
        if victim.part is not None:
            await victim.part.stop()
