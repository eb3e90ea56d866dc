"""`true` in a live container, SDK to SDK, beside a bare request on the same broker and a bare spawn."""

from __future__ import annotations

import time
from typing import Any

from dsec.benchmarks.measure import Cpu, Tell, accounting, in_flight, live, percentile, process
from dsec.bus.errors import InfraError
from dsec.sdk import Sandbox

ALONE, MANY = 1000, 6000


async def run(tell: Tell) -> dict[str, Any]:
    """Keys: `p50_ms`, `p99_alone_ms` (one at a time); `per_s`, `p99_ms`, `cpu_ms` (16 in flight); floors."""
    with accounting() as cpu:
        async with (
            live(tell) as part,
            part.client() as client,
            client.sandbox(backend="container", image="base") as sandbox,
        ):
            return {
                **await _alone(tell, sandbox),
                **await _many(tell, cpu, sandbox),
                **await _floors(tell, sandbox),
            }


async def _timed(sandbox: Sandbox) -> float:
    started = time.perf_counter()
    result = await sandbox.run(["true"])
    if result.code != 0:
        raise InfraError(f"true ended with {result}")
    return (time.perf_counter() - started) * 1e3


async def _alone(tell: Tell, sandbox: Sandbox) -> dict[str, float]:
    tell(f"{ALONE} one at a time")
    for _ in range(100):
        await _timed(sandbox)
    samples = [await _timed(sandbox) for _ in range(ALONE)]
    return {"p50_ms": round(percentile(samples, 0.5), 2), "p99_alone_ms": round(percentile(samples, 0.99), 2)}


async def _many(tell: Tell, cpu: Cpu, sandbox: Sandbox) -> dict[str, float]:
    tell(f"{MANY}, 16 in flight")
    samples: list[float] = []

    async def one(_: int) -> None:
        samples.append(await _timed(sandbox))

    before = cpu.ms()
    seconds = await in_flight(MANY, 16, one)
    return {
        "per_s": round(MANY / seconds, 1),
        "p99_ms": round(percentile(samples, 0.99), 2),
        "cpu_ms": round((cpu.ms() - before) / MANY, 3),
    }


async def _floors(tell: Tell, sandbox: Sandbox) -> dict[str, float]:
    """`floor_request_ms`: a stat, one request and reply; `floor_spawn_ms`: `true` on the host."""
    tell("floors")
    requests, spawns = [], []
    for _ in range(300):
        started = time.perf_counter()
        await sandbox.stat()
        requests.append((time.perf_counter() - started) * 1e3)
    for _ in range(200):
        started = time.perf_counter()
        await process("true")
        spawns.append((time.perf_counter() - started) * 1e3)
    return {
        "floor_request_ms": round(percentile(requests, 0.5), 2),
        "floor_spawn_ms": round(percentile(spawns, 0.5), 2),
    }
