"""cpu.max and cpu.weight, under contention."""

import asyncio
import os

import pytest

from dsec.bus.spec import Limits
from tests.container.conftest import Bench
from tests.unified.conftest import UNIFIED, told

pytestmark = [*UNIFIED, pytest.mark.alone]

SECONDS = 2.0
SPIN = f"for i in 1 2 3 4; do timeout {SECONDS + 3} sh -c 'while :; do :; done' & done; wait"
ALL = Limits(cpu=float(os.cpu_count() or 1), memory=128 << 20, pids=64, nofile=256)


async def used(bench: Bench, *sandboxes: str) -> list[float]:
    """Seconds of CPU that each uses within SECONDS, after a while."""
    await asyncio.sleep(1.0)
    before = [told(bench, sandbox, "cpu.stat")["usage_usec"] for sandbox in sandboxes]
    await asyncio.sleep(SECONDS)
    after = [told(bench, sandbox, "cpu.stat")["usage_usec"] for sandbox in sandboxes]
    return [(late - early) / 1e6 for early, late in zip(before, after, strict=True)]


async def test_best_effort_gets_what_latency_leaves(bench: Bench) -> None:
    async with (
        bench.box(ALL, cpu_class="latency") as first,
        bench.box(ALL, cpu_class="besteffort") as last,
        asyncio.TaskGroup() as spinning,
    ):
        for one in (first, last):
            spinning.create_task(one.run("sh", "-c", SPIN))
        wanted, left = await used(bench, first.name, last.name)
        assert wanted > 5 * left


async def test_best_effort_alone_gets_the_machine(bench: Bench) -> None:
    async with bench.box(ALL, cpu_class="besteffort") as alone, asyncio.TaskGroup() as spinning:
        spinning.create_task(alone.run("sh", "-c", SPIN))
        (got,) = await used(bench, alone.name)
        assert got > SECONDS / 2


async def test_a_share_of_a_core_is_all_that_many_processes_get(bench: Bench) -> None:
    limits = ALL.model_copy(update={"cpu": 0.5})
    async with bench.box(limits) as box, asyncio.TaskGroup() as spinning:
        spinning.create_task(box.run("sh", "-c", SPIN))
        (got,) = await used(bench, box.name)
        assert got < 0.6 * SECONDS
        assert told(bench, box.name, "cpu.stat")["nr_throttled"] > 0


async def test_a_paused_sandbox_uses_no_cpu(bench: Bench) -> None:
    async with bench.box(ALL) as box, asyncio.TaskGroup() as spinning:
        spinning.create_task(box.run("sh", "-c", SPIN))
        await asyncio.sleep(1.0)
        await bench.driver.pause(box.name)
        (got,) = await used(bench, box.name)
        await bench.driver.resume(box.name)
        assert got == 0.0
