"""A full disk, the node's or the broker's: typed errors, nothing lost or left, and on without a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dsec.bus.errors import DiskFull, InfraError, NoCapacity
from dsec.bus.home import Home
from dsec.bus.messages import State
from tests.faults import support

pytestmark = [pytest.mark.node, pytest.mark.slow]
GIB, MIB = 1 << 30, 1 << 20
COUNT = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo $i; sleep 0.01; done"
COUNTED = "".join(f"{number}\n" for number in range(1, 401))


async def test_a_node_whose_disk_is_full_refuses_loses_nothing_and_goes_on(
    tmp_path: Path, base_file: Path
) -> None:
    node = Home(tmp_path / "home").path / "nodes"
    with support.disk(node, 3 * GIB // 2):
        async with support.halves(tmp_path / "home", base_file) as halves, halves.client() as client:
            sandbox, other = [await client.create(image="base") for _ in range(2)]
            counting = await sandbox.start(COUNT)
            with support.filled(node):
                with pytest.raises(NoCapacity, match="disk"):
                    await client.create(image="base", timeout=1)
                with pytest.raises(DiskFull):
                    await other.pack("layer")
                with pytest.raises(DiskFull):
                    await other.pause()
                assert (await other.stat()).state is State.RUNNING
                with pytest.raises(InfraError, match="disk_full"):
                    await halves.import_base(base_file, "again")
                with pytest.raises(DiskFull):
                    await sandbox.files.write("/f", bytes(MIB))
                await other.destroy()
                assert halves.leftovers(other.id) == []
            assert (await sandbox.run("echo x > /f; cat /f")).stdout == "x\n"
            assert (await sandbox.pack("layer")).name == "layer"
            await (await client.create(image="base")).destroy()
            assert (await counting.wait()).stdout == COUNTED
        assert halves.leftovers() == []


async def test_a_broker_whose_disk_was_full_stores_again_and_no_output_is_lost(
    tmp_path: Path, base_file: Path
) -> None:
    broker = Home(tmp_path / "home").broker
    with support.disk(broker, 256 * MIB):
        async with support.halves(tmp_path / "home", base_file) as halves, halves.client() as client:
            sandbox = await client.create(image="base")
            before = halves.broker_pid
            with support.filled(broker):
                counting = await sandbox.start(COUNT)
                much = await sandbox.start("seq 1000000", detach=True)
                await asyncio.sleep(1.5)
                assert (await sandbox.stat()).state is State.RUNNING
            assert (await counting.wait()).stdout == COUNTED
            assert (await much.wait()).stdout_bytes == b"".join(b"%d\n" % i for i in range(1, 1_000_001))
            assert halves.broker_pid != before
            await (await client.create(image="base")).destroy()
