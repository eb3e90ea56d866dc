"""Stateless calls where every controller is on version 2: the limits, what is counted, nothing left."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dsec.bus.caller import CallResult, parse_call
from dsec.plugins.fncall import FnCaller
from dsec.plugins.fncall.groups import Groups
from dsec.plugins.fncall.settings import Settings
from dsec.plugins.images import ErofsImages
from dsec.plugins.images.base import NAME
from dsec.sdk.testing import pace, traces
from tests.unified.conftest import UNIFIED

pytestmark = UNIFIED


@pytest.fixture
async def caller(images: ErofsImages, tmp_path: Path) -> AsyncIterator[FnCaller]:
    async with FnCaller.running(tmp_path, images, "n-test", Settings(warm_within=pace.within(60))) as caller:
        yield caller
    assert not traces.cgroups(str(Groups.here(tmp_path).parent))


async def called(caller: FnCaller, source: str, **spec: Any) -> CallResult:
    wanted = parse_call({"source": source, "image": NAME, **spec})
    return await caller.call("p-one", wanted, time.time() + pace.within(100))


async def test_memory_over_the_limit_ends_a_call_as_such(caller: FnCaller) -> None:
    done = await called(caller, "x = bytearray(300 << 20)", limits={"memory": 64 << 20, "wall": 60})
    assert (done.ended, done.failure) == ("oom", "limit")
    again = await called(caller, "print('next')", limits={"memory": 64 << 20, "wall": 60})
    assert (again.ended, again.code) == ("exit", 0)


async def test_cpu_time_of_all_processes_is_counted_and_limited(caller: FnCaller) -> None:
    source = "import os\nos.fork()\nwhile True: pass\n"
    done = await called(caller, source, limits={"cpu_time": 1.0, "wall": 100})
    assert (done.ended, done.failure) == ("timeout", "limit")
    assert done.detail == "it used more than limits.cpu_time"
    assert 900 < done.cpu_ms < 4000


async def test_forks_end_at_the_limit_of_processes(caller: FnCaller) -> None:
    source = """
import os, time
def f():
    for number in range(100):
        try:
            if os.fork() == 0:
                time.sleep(100)
        except OSError:
            return number
"""
    done = await called(caller, source, entry="f", limits={"pids": 16, "wall": 60})
    assert 0 < done.value < 16


async def test_a_call_sees_no_group_but_its_own_root(caller: FnCaller) -> None:
    done = await called(
        caller, "cat /proc/self/cgroup; ls /sys/fs/cgroup", language="sh", limits={"wall": 60}
    )
    assert done.stdout == "MDo6Lwo="  # 0::/
