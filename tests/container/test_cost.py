"""What a sandbox costs in CPU time, engine, agent and this process included: `pytest -s` shows it."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.bus import ids
from tests.container.conftest import Bench, order

pytestmark = [pytest.mark.node, pytest.mark.alone]
ROUNDS, CYCLES = 12, 10
BUDGET_MS = 20.0
"""Twice what a quiet machine shows. A busy one may add more for a while: one round within it is enough."""


@contextlib.contextmanager
def joined(directory: Path) -> Iterator[None]:
    """This process in the version 2 cgroup `directory`, for its share to be counted there."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next(line[3:] for line in lines if line.startswith("0::"))
    root = Path(str(directory)[: str(directory).index("/dsec/")])
    directory.mkdir()
    (directory / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (root / own.strip("/") / "cgroup.procs").write_text(str(os.getpid()))
        directory.rmdir()


def used_ms(directory: Path) -> float:
    usage = (directory / "cpu.stat").read_text().split("\n", 1)[0]
    return int(usage.split()[1]) / 1000


async def round_ms(bench: Bench, everything: Path) -> tuple[float, float]:
    """CPU ms of one create with destroy, and how many were done in a second, one after the other."""
    names = [ids.sandbox_on("n-test") for _ in range(CYCLES)]
    composed = [await bench.rootfs(name) for name in names]
    used, began = used_ms(everything), time.monotonic()
    for name, rootfs in zip(names, composed, strict=True):
        await bench.driver.create(order(name), rootfs)
        await bench.driver.destroy(name)
    spent = (used_ms(everything) - used) / CYCLES, CYCLES / (time.monotonic() - began)
    for name in names:
        await bench.images.release(name)
    return spent


async def test_create_and_destroy_stay_within_the_cpu_budget(bench: Bench) -> None:
    async with bench.box():
        pass
    everything = bench.driver._cgroups().layout.v2 / bench.driver._cgroups().parent
    with joined(everything / "measuring"):
        cost, rate = await round_ms(bench, everything)
        for _ in range(1, ROUNDS):
            if cost < BUDGET_MS:
                break
            cost, rate = await round_ms(bench, everything)
    print(f"\ncreate + destroy: {cost:.1f} CPU ms, {rate:.0f}/s one after the other")
    assert 1 < cost < BUDGET_MS
