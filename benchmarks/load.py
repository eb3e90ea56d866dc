"""The load of the control plane's benchmarks: simulated nodes without limits, creates in an open loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import orjson

TICK: Final = 0.002
"""Seconds between two looks at what is due."""
SIM: Final = {
    "cpu": 1e6,
    "memory": 1 << 50,
    "sandboxes": 1_000_000,
    "defaults": {"cpu": 0.1, "memory": 1 << 26},
}
"""Configuration of nodes that are never full."""


def sim_options(home: Path, nodes: int) -> tuple[str, ...]:
    """The arguments of `dsec` that run `nodes` of them beside the control plane of `home`."""
    config = home / "sim.json"
    config.write_bytes(orjson.dumps(SIM))
    return ("sim", "--home", str(home), "--nodes", str(nodes), "--config", str(config), "--json")


async def open_loop(rate: float, seconds: float, work: Callable[[float, int], Awaitable[None]]) -> int:
    """Begin `work(due, number)` when it is due, whatever became of the others: `rate` a second, evenly.

    Returns when all have ended: how many there were.
    """
    loop = asyncio.get_running_loop()
    began, sent = loop.time(), 0
    running: set[asyncio.Future[None]] = set()
    while (now := loop.time()) < began + seconds:
        while sent < (now - began) * rate:
            task = asyncio.ensure_future(work(began + sent / rate, sent))
            running.add(task)
            task.add_done_callback(running.discard)
            sent += 1
        await asyncio.sleep(TICK)
    await asyncio.gather(*running)
    return sent
