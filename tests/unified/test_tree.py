"""The shape of the tree: who has controllers, who has processes, and that nothing is both."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.bus.errors import MissingTool
from dsec.bus.spec import Limits
from dsec.plugins.container.cgroups import CONTROLLERS, INIT, Cgroups, Group
from dsec.sdk.testing import traces
from tests.container.conftest import Bench, Box
from tests.unified.conftest import UNIFIED

pytestmark = UNIFIED

ROOT = Path("/sys/fs/cgroup")


def group_of(bench: Bench, box: Box) -> Group:
    return bench.driver._cgroups().of(box.name)


async def test_controllers_are_handed_down_to_the_sandbox_and_processes_sit_below_it(
    bench: Bench, box: Box
) -> None:
    group = group_of(bench, box).v2
    running = asyncio.create_task(box.run("sleep", "2"))
    await asyncio.sleep(0.5)
    for above in (group.parent, group.parent.parent):
        assert set(CONTROLLERS) <= set((above / "cgroup.subtree_control").read_text().split())
        assert (above / "cgroup.procs").read_text() == ""
    assert (group / "cgroup.procs").read_text() == ""
    assert (group / INIT / "cgroup.procs").read_text().split()
    assert len([child for child in group.iterdir() if child.is_dir()]) == 2
    await running


async def test_no_process_can_be_put_between_the_root_and_the_sandboxes(bench: Bench, box: Box) -> None:
    above = group_of(bench, box).v2.parent
    with pytest.raises(OSError, match="busy") as caught:
        (above / "cgroup.procs").write_text(str(os.getpid()))
    assert caught.value.errno == errno.EBUSY


@pytest.fixture
def occupied() -> Iterator[str]:
    """A cgroup with a process in it, as a container manager may have made one."""
    parent = ROOT / "occupied"
    parent.mkdir()
    with subprocess.Popen(["sleep", "600"]) as process:
        (parent / "cgroup.procs").write_text(str(process.pid))
        yield parent.name
        process.kill()
    for directory in (*parent.iterdir(), parent):
        if directory.is_dir():
            directory.rmdir()


def test_a_group_with_processes_cannot_have_controllers_below_and_is_refused(
    bench: Bench, occupied: str
) -> None:
    groups = Cgroups(bench.driver._cgroups().layout, f"{occupied}/home")
    with pytest.raises(MissingTool, match="must be usable by root"):
        groups.prepare()


async def test_the_inside_sees_a_tree_of_its_own(box: Box) -> None:
    assert (await box.run("cat", "/proc/self/cgroup")).out.startswith("0::/")
    assert "dsec" not in (await box.run("cat", "/proc/self/cgroup", "/proc/1/cgroup")).out
    assert (await box.run("sh", "-c", "grep -E ' cgroup2? ' /proc/mounts")).out == ""


async def test_destroy_removes_the_whole_group_with_everything_in_it(bench: Bench) -> None:
    async with bench.box() as box:
        bomb = "for i in $(seq 20); do (setsid sleep 100 &) ; done; sleep 100"
        running = asyncio.create_task(box.run("sh", "-c", bomb))
        await asyncio.sleep(1.0)
        assert traces.of(bench.driver.home, box.name)
    assert not group_of(bench, box).exists()
    assert traces.of(bench.driver.home, box.name) == []
    running.cancel()
    await asyncio.wait([running])


async def test_a_frozen_fork_bomb_is_destroyed_too(bench: Bench) -> None:
    async with bench.box(Limits(cpu=1.0, memory=128 << 20, pids=40, nofile=256)) as box:
        running = asyncio.create_task(box.run("sh", "-c", "f() { f | f & }; f; sleep 100"))
        await asyncio.sleep(1.0)
        await bench.driver.pause(box.name)
        assert group_of(bench, box).is_frozen()
        await bench.driver.destroy(box.name)
        assert not group_of(bench, box).exists()
        running.cancel()
        await asyncio.wait([running])


async def test_security_modules_of_the_test_bed_are_on(bench: Bench) -> None:
    lsm = Path("/sys/kernel/security/lsm")
    if "testbed" not in Path("/proc/sys/kernel/hostname").read_text():
        pytest.skip("the machine is not the test bed")
    assert {"apparmor", "bpf", "landlock"} <= set(lsm.read_text().split(","))
