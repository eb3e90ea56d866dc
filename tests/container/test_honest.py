"""lxcfs and CPU sets: figures of the sandbox's own, whatever becomes of lxcfs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.errors import MissingTool
from dsec.bus.spec import Limits
from dsec.plugins.container import ContainerDriver, honest
from dsec.plugins.container.cgroups import until
from dsec.plugins.container.cpus import Cpus, choose, listed, parse
from tests.container.conftest import Bench, Box

pytestmark = pytest.mark.node
TOTAL = ("sh", "-c", "read -r _ total _ < /proc/meminfo; echo $total")
MINE = f"{256 << 10}\n"


@pytest.fixture(autouse=True)
def there() -> None:
    honest.check()


def pid_of(bench: Bench) -> int:
    """Zero while it is written anew."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(bench.driver._honest.pid_file.read_text())
    return 0


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@given(st.sets(st.integers(0, 300), min_size=1), st.none() | st.floats(0.01, 400), st.data())
def test_so_many_processors_are_chosen_as_the_limit_needs_and_the_least_loaded(
    every: set[int], cores: float | None, data: st.DataObject
) -> None:
    loads = {cpu: data.draw(st.floats(0, 10)) for cpu in every}
    chosen = choose(frozenset(every), loads, cores)
    assert chosen <= every
    assert len(chosen) == len(every) if cores is None else min(len(every), cores) <= len(chosen) < cores + 1
    others = every - chosen
    assert not others or max(loads[cpu] for cpu in chosen) <= min(loads[cpu] for cpu in others)


@given(st.lists(st.floats(0.1, 4), min_size=1, max_size=50))
def test_sandboxes_are_spread_evenly(limits: list[float]) -> None:
    cpus = Cpus(frozenset(range(4)))
    for number, cores in enumerate(limits):
        cpus.take(str(number), cores)
    loads = cpus._loads()
    assert max(loads.values()) - min(loads.values()) <= 1.0 + 1e-6
    for number in range(len(limits)):
        cpus.free(str(number))
    assert set(cpus._loads().values()) == {0.0}


@given(st.sets(st.integers(0, 300)))
def test_lists_of_processors_are_read_as_they_are_written(cpus: set[int]) -> None:
    assert parse(listed(frozenset(cpus))) == cpus


def test_ranges_of_processors_are_read() -> None:
    assert parse("0-2,5,7-8\n") == {0, 1, 2, 5, 7, 8}


async def test_two_sandboxes_of_one_processor_each_have_different_ones(bench: Bench) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one processor")
    async with bench.box() as first, bench.box() as second:
        allowed = [
            (await box.run("grep", "Cpus_allowed_list", "/proc/self/status")).out for box in (first, second)
        ]
        assert len(set(allowed)) == 2
        assert [(await box.run("nproc")).out for box in (first, second)] == ["1\n", "1\n"]


async def test_after_lxcfs_was_killed_reads_fail_at_once_or_are_right_and_soon_are_right(
    bench: Bench, box: Box
) -> None:
    assert (await box.run(*TOTAL)).out == MINE
    killed = pid_of(bench)
    os.kill(killed, signal.SIGKILL)
    async with asyncio.timeout(20):
        while pid_of(bench) in {0, killed} or (await box.run(*TOTAL)).out != MINE:  # noqa: ASYNC110 - by asking
            await asyncio.sleep(0.1)
    assert ended(killed)
    async with bench.box() as other:
        assert (await other.run(*TOTAL)).out == MINE


async def test_while_lxcfs_hangs_all_else_goes_on(bench: Bench, box: Box) -> None:
    assert (await box.run(*TOTAL)).out == MINE
    os.kill(pid_of(bench), signal.SIGSTOP)
    try:
        async with asyncio.timeout(20):
            hanging = asyncio.ensure_future(box.run("cat", "/proc/uptime"))
            assert (await box.run("echo", "on")).out == "on\n"
            async with bench.box(Limits(cpu=1, memory=64 << 20)) as other:
                assert (await other.run("echo", "on")).out == "on\n"
            assert not hanging.done()
            await bench.driver.destroy(box.name)
            await asyncio.gather(hanging, return_exceptions=True)
    finally:
        os.kill(pid_of(bench), signal.SIGCONT)


async def test_without_lxcfs_sandboxes_work_and_its_check_tells(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(honest, "PROGRAM", "no-such-lxcfs")
    with pytest.raises(MissingTool, match="apt-get install lxcfs"):
        honest.check()
    await bench.driver.check()
    async with bench.box() as box:
        told = await box.run(*TOTAL)
        assert (told.code, told.out == MINE) == (0, False)
        assert (await box.run("nproc")).out == "1\n"


async def test_the_next_driver_takes_lxcfs_over_and_the_last_leaves_nothing(bench: Bench, box: Box) -> None:
    pid = pid_of(bench)
    await bench.driver.close()
    assert not ended(pid)
    following = ContainerDriver(bench.driver.home)
    await following.recover(box.handle)
    async with Bench(following, bench.images).box() as other:
        assert (await other.run(*TOTAL)).out == MINE
    assert pid_of(bench) == pid
    assert (await box.run(*TOTAL)).out == MINE
    await following.destroy(box.name)
    await following.close()
    await until(lambda: ended(pid), "the end of lxcfs")
    place = bench.driver._honest.pid_file.parent
    assert not place.exists()
    assert str(place) not in Path("/proc/self/mountinfo").read_text()


async def test_what_a_killed_node_left_is_ended_by_another_once_its_home_is_gone(
    bench: Bench, tmp_path: Path
) -> None:
    killed = Bench(ContainerDriver(tmp_path / "killed"), bench.images)
    async with killed.box():
        left = pid_of(killed)
    await killed.driver._honest.close(used=True)
    (tmp_path / "killed").rename(tmp_path / "moved")
    async with bench.box() as box:
        assert (await box.run(*TOTAL)).out == MINE
    await asyncio.to_thread(os.waitpid, left, 0)
    assert ended(left)
    assert not killed.driver._honest.pid_file.parent.exists()
    (tmp_path / "moved").rename(tmp_path / "killed")
    await killed.clear()
