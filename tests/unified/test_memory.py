"""memory.max without swap, and memory.reclaim with it."""

import asyncio

import pytest

from dsec.bus.spec import Limits
from tests.container.conftest import LIMITS, Bench, Box
from tests.container.usage import memory_of
from tests.unified.conftest import UNIFIED, number, told

pytestmark = UNIFIED

HEAP = 64 << 20
KEEPER = f"""
import hashlib, os, time
heap = os.urandom({HEAP // 16}) * 16
print(hashlib.sha256(heap).hexdigest(), file=open("/before", "w"))
while not os.path.exists("/go"):
    time.sleep(0.1)
print(hashlib.sha256(heap).hexdigest())
"""
"""Its memory is checked against what it was before the pause."""


async def settled(box: Box, path: str) -> None:
    await box.run("sh", "-c", f"until test -s {path}; do sleep 0.1; done")


@pytest.mark.usefixtures("swap")
async def test_the_memory_of_paused_processes_is_taken_where_there_is_swap(bench: Bench, box: Box) -> None:
    keeper = asyncio.create_task(box.python(KEEPER))
    await settled(box, "/before")
    before = memory_of(bench.driver, box.name)
    assert before > HEAP
    await bench.driver.pause(box.name)
    await bench.driver.reclaim(box.name)
    assert memory_of(bench.driver, box.name) < before - HEAP // 2
    assert number(bench, box.name, "memory.swap.current") > HEAP // 2
    await bench.driver.resume(box.name)
    await box.run("touch", "/go")
    assert (await keeper).out == (await box.run("cat", "/before")).out


@pytest.mark.usefixtures("swap")
async def test_a_running_sandbox_may_not_swap_its_way_past_its_limit(bench: Bench, box: Box) -> None:
    await bench.driver.pause(box.name)
    await bench.driver.reclaim(box.name)
    await bench.driver.resume(box.name)
    assert number(bench, box.name, "memory.swap.max") == 0
    assert (await box.python("x = bytearray(512 << 20)")).signal == 9
    assert told(bench, box.name, "memory.events")["oom_kill"] == 1


async def test_the_limit_holds_for_all_processes_together(bench: Bench) -> None:
    async with bench.box(LIMITS.model_copy(update={"memory": 48 << 20})) as box:
        hungry = "import time; x = bytearray(24 << 20); time.sleep(3); print('fed')"
        fed = await asyncio.gather(*(box.python(hungry) for _ in range(3)))
        assert sorted(one.out for one in fed) != ["fed\n"] * 3
        assert number(bench, box.name, "memory.max") == 48 << 20
        assert 0 < number(bench, box.name, "memory.current") <= 48 << 20


async def test_a_process_limit_counts_its_refusals(bench: Bench) -> None:
    async with bench.box(Limits(cpu=1.0, memory=128 << 20, pids=16, nofile=256)) as box:
        await box.run("sh", "-c", "for i in $(seq 30); do sleep 1 & done; wait")
        assert told(bench, box.name, "pids.events")["max"] > 0
        assert number(bench, box.name, "pids.current") <= 16
        await box.guest.ping()
