"""One exec's stdout to the SDK through the durable log; 64 at once; a stopped reader, short execs beside."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from dsec.benchmarks.measure import Tell, live, percentile
from dsec.bus.errors import InfraError
from dsec.sdk import Client, Sandbox
from dsec.sdk.testing import platform

ONE_MB, EACH_MB, READERS = 400, 8, 64
MB = 1 << 20


async def run(tell: Tell) -> dict[str, Any]:
    """Keys: `mb_per_s`, `floor_pipe_mb_per_s`, `slowest_over_fastest`, `all_mb_per_s`, `stalled_mb`,
    `stalled_rss_mb`, `p50_ms_beside`."""
    async with (
        live(tell) as part,
        part.client() as client,
        client.sandbox(
            backend="container", image="base", limits={"cpu": 2.0, "log_bytes": 1 << 33}
        ) as sandbox,
    ):
        return {
            **await _one(tell, sandbox),
            **await _pipe_floor(tell),
            **await _together(tell, sandbox),
            **await _stalled(tell, part, client, sandbox),
        }


def _zeros(megabytes: int) -> list[str]:
    return ["head", "-c", str(megabytes * MB), "/dev/zero"]


async def _drain(sandbox: Sandbox, megabytes: int) -> float:
    """Seconds until the whole output of one exec has been read."""
    started = time.perf_counter()
    running = await sandbox.start(_zeros(megabytes), timeout=120)
    length = 0
    async for chunk in running:
        length += len(chunk)
    if length != megabytes * MB or (await running.wait()).code != 0:
        raise InfraError(f"{length} bytes arrived of {megabytes} MiB")
    return time.perf_counter() - started


async def _one(tell: Tell, sandbox: Sandbox) -> dict[str, float]:
    tell(f"one exec, {ONE_MB} MiB")
    await _drain(sandbox, 16)
    return {"mb_per_s": round(ONE_MB * MB / 1e6 / await _drain(sandbox, ONE_MB), 1)}


async def _pipe_floor(tell: Tell) -> dict[str, float]:
    tell("floor: the same through a bare pipe")
    started = time.perf_counter()
    head = await asyncio.create_subprocess_exec(*_zeros(ONE_MB), stdout=asyncio.subprocess.PIPE, limit=MB)
    assert head.stdout is not None
    while await head.stdout.read(MB):
        pass
    await head.wait()
    return {"floor_pipe_mb_per_s": round(ONE_MB * MB / 1e6 / (time.perf_counter() - started), 1)}


async def _together(tell: Tell, sandbox: Sandbox) -> dict[str, float]:
    tell(f"{READERS} execs at once, {EACH_MB} MiB each")
    started = time.perf_counter()
    seconds = await asyncio.gather(*(_drain(sandbox, EACH_MB) for _ in range(READERS)))
    whole = time.perf_counter() - started
    return {
        "slowest_over_fastest": round(min(seconds) / max(seconds), 2),
        "all_mb_per_s": round(READERS * EACH_MB * MB / 1e6 / whole, 1),
    }


async def _stalled(tell: Tell, part: platform.Part, client: Client, sandbox: Sandbox) -> dict[str, float]:
    """An endless writer whose reader takes one chunk and stops: what the platform goes on to hold for it."""
    tell("a reader that stops, short execs beside it")
    before = _rss_mb(part.process.pid)
    endless = await sandbox.start(["cat", "/dev/zero"], timeout=60)
    await anext(aiter(endless))
    beside = []
    until = time.perf_counter() + 8
    while time.perf_counter() < until:
        started = time.perf_counter()
        await sandbox.run(["true"])
        beside.append((time.perf_counter() - started) * 1e3)
        await asyncio.sleep(0.005)
    growth = _rss_mb(part.process.pid) - before
    await endless.kill()
    held = len((await client.exec(sandbox.id, endless.id).wait()).stdout_bytes)
    return {
        "stalled_mb": round(held / 1e6, 1),
        "stalled_rss_mb": round(growth, 1),
        "p50_ms_beside": round(percentile(beside, 0.5), 2),
    }


def _rss_mb(pid: int) -> float:
    """Resident memory of a process and its children, MB."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(_own_rss_mb(int(one)) for one in [str(pid), *children])


def _own_rss_mb(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096 / 1e6
