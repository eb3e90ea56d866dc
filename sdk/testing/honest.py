"""What a sandbox is told of processors, memory, load and uptime: its own, where the node can tell."""

from __future__ import annotations

import asyncio
import os

import orjson
import pytest

from dsec.sdk import Client
from dsec.sdk.testing import pace

MIB = 1 << 20
LOOK = """
import os, json
meminfo = {line.split(":")[0]: int(line.split()[1]) for line in open("/proc/meminfo")}
print(json.dumps({
    "count": os.cpu_count(), "affinity": len(os.sched_getaffinity(0)),
    "cpuinfo": open("/proc/cpuinfo").read().count("processor\\t"),
    "stat": sum(line.startswith("cpu") for line in open("/proc/stat")) - 1,
    "total": meminfo["MemTotal"] << 10, "available": meminfo["MemAvailable"] << 10,
    "uptime": float(open("/proc/uptime").read().split()[0]),
    "load": float(open("/proc/loadavg").read().split()[0]),
    "own": [line.split()[4] for line in open("/proc/self/mountinfo") if "fuse.lxcfs" in line],
}))
"""


class HonestSuite:
    @pytest.fixture
    def cpu(self, offered: frozenset[str]) -> None:
        if not {"cpu", "memory"} <= offered:
            pytest.skip("it does not limit processors and memory")

    @pytest.mark.usefixtures("cpu")
    async def test_processors_are_those_of_the_limit(self, client: Client, backend: str) -> None:
        machine = len(os.sched_getaffinity(0))
        for cores in (0.5, 1, 1.5, machine):
            async with client.sandbox(backend=backend, image="base", limits={"cpu": cores}) as sandbox:
                expected = min(machine, -int(-cores // 1))
                told = (await sandbox.run(["python3", "-c", LOOK], check=True)).stdout
                found = orjson.loads(told)
                assert found["affinity"] == expected
                assert (await sandbox.run(["nproc"])).stdout == f"{expected}\n"
                if found["own"]:
                    assert found["count"] == found["cpuinfo"] == found["stat"] == expected

    @pytest.mark.usefixtures("cpu")
    async def test_memory_load_and_uptime_are_its_own(self, client: Client, backend: str) -> None:
        async with client.sandbox(
            backend=backend, image="base", limits={"memory": 128 * MIB, "cpu": 1}
        ) as sandbox:
            told = orjson.loads((await sandbox.run(["python3", "-c", LOOK], check=True)).stdout)
            if not told["own"]:
                pytest.skip("the node has no lxcfs")
            assert told["total"] == 128 * MIB
            assert told["available"] <= 128 * MIB
            assert told["uptime"] < pace.within(60)
            assert told["cpuinfo"] == told["stat"] == told["count"] == told["affinity"] == 1
            assert told["load"] < 100
            free = (await sandbox.run(["free", "-b"])).stdout
            assert not free or free.splitlines()[1].split()[1] == str(128 * MIB)
            before = told["uptime"]
            await asyncio.sleep(1)
            again = orjson.loads((await sandbox.run(["python3", "-c", LOOK], check=True)).stdout)
            assert 0.5 < again["uptime"] - before < pace.within(20)
