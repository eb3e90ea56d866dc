"""Starting, finding again, pausing, dying, destroying."""

import asyncio
import os
import signal
from pathlib import Path

import orjson
import pytest

from dsec.bus import ids
from dsec.bus.chronus.guest import Guest
from dsec.bus.driver import CanPause, CountsOom, Death, Handle
from dsec.bus.errors import AgentCrippled, Failure, NoSuchSandbox
from dsec.plugins.container import ContainerDriver, engine
from dsec.plugins.container.cgroups import until
from dsec.plugins.container.process import started
from tests.container.conftest import Bench, Box, order

pytestmark = pytest.mark.node


def pid_of(handle: Handle) -> int:
    return int(orjson.loads(handle.state)["pid"])


async def gone(pid: int) -> None:
    await until(lambda: started(pid) is None, f"the end of {pid}")


async def test_a_command_runs_as_root_of_its_own_world(box: Box) -> None:
    said = await box.run("sh", "-c", "id -u; pwd; echo oops >&2; exit 3")
    assert (said.code, said.out, said.err) == (3, "0\n/\n", "oops\n")


async def test_files_written_inside_belong_to_ids_of_the_inside(box: Box) -> None:
    await box.run("sh", "-c", "touch /made && chown 1000:1000 /made")
    made = (box.rootfs.path / "made").stat()
    assert made.st_uid == box.rootfs.uid_base + 1000


async def test_it_can_pause_and_counts_oom_by_its_type(bench: Bench) -> None:
    assert isinstance(bench.driver, CanPause)
    assert isinstance(bench.driver, CountsOom)


async def test_a_paused_sandbox_does_nothing_and_goes_on_where_it_was(bench: Bench, box: Box) -> None:
    await bench.driver.pause(box.name)
    await bench.driver.pause(box.name)
    running = asyncio.ensure_future(box.run("echo", "on"))
    done, _ = await asyncio.wait([running], timeout=0.3)
    assert not done
    await bench.driver.resume(box.name)
    await bench.driver.resume(box.name)
    assert (await running).out == "on\n"


async def test_a_paused_sandbox_can_be_destroyed(bench: Bench, box: Box) -> None:
    await bench.driver.pause(box.name)
    await bench.driver.destroy(box.name)
    assert started(pid_of(box.handle)) is None


async def test_a_new_channel_replaces_the_former(bench: Bench, box: Box) -> None:
    second = await Guest.connect(await bench.driver.channel(box.name))
    await second.ping()
    second.close()


async def test_the_death_of_the_agent_is_told_once_as_a_limit(bench: Bench, box: Box) -> None:
    deaths = bench.driver.watch()
    os.kill(pid_of(box.handle), signal.SIGKILL)
    death = await asyncio.wait_for(anext(deaths), 5)
    assert (death.sandbox, death.failure) == (box.name, Failure.LIMIT)
    assert await bench.driver.inspect(box.name) == death
    with pytest.raises(AgentCrippled):
        await bench.driver.channel(box.name)
    await deaths.aclose()  # type: ignore[attr-defined]  # an async generator, which the contract need not be


async def test_destroying_is_no_death_to_tell(bench: Bench) -> None:
    deaths = bench.driver.watch()
    first: asyncio.Future[Death] = asyncio.ensure_future(anext(deaths))
    async with bench.box() as box:
        await bench.driver.destroy(box.name)
        with pytest.raises(NoSuchSandbox):
            await bench.driver.inspect(box.name)
    done, _ = await asyncio.wait([first], timeout=0.2)
    assert not done
    first.cancel()


async def test_another_driver_takes_over_what_a_killed_one_left(bench: Bench, box: Box) -> None:
    await box.run("sh", "-c", "echo kept > /kept")
    other = ContainerDriver(bench.driver.home)
    await other.recover(box.handle)
    await other.recover(box.handle)
    assert await other.inspect(box.name) is None
    guest = await Guest.connect(await other.channel(box.name))
    assert await guest.read("/kept", 0, 100) == b"kept\n"
    deaths = other.watch()
    os.kill(pid_of(box.handle), signal.SIGKILL)
    assert (await asyncio.wait_for(anext(deaths), 5)).sandbox == box.name
    guest.close()
    await other.close()


async def test_what_died_meanwhile_cannot_be_recovered(bench: Bench, box: Box) -> None:
    os.kill(pid_of(box.handle), signal.SIGKILL)
    await gone(pid_of(box.handle))
    other = ContainerDriver(bench.driver.home)
    with pytest.raises(NoSuchSandbox):
        await other.recover(box.handle)
    await other.close()


async def test_another_process_with_the_same_pid_is_not_taken_for_it(bench: Bench, box: Box) -> None:
    state = orjson.loads(box.handle.state) | {"pid": os.getpid()}
    other = ContainerDriver(bench.driver.home)
    with pytest.raises(NoSuchSandbox):
        await other.recover(Handle(box.name, "container", 1, orjson.dumps(state)))
    await other.close()


async def test_destroy_may_be_repeated_and_is_silent_for_what_never_was(bench: Bench, box: Box) -> None:
    for _ in range(3):
        await bench.driver.destroy(box.name)
    await bench.driver.destroy(ids.sandbox_on("n-test"))
    with pytest.raises(NoSuchSandbox):
        await bench.driver.channel(box.name)
    with pytest.raises(NoSuchSandbox):
        await bench.driver.pause(box.name)


async def test_create_after_a_half_made_attempt_starts_anew(bench: Bench) -> None:
    sandbox = ids.sandbox_on("n-test")
    rootfs = await bench.rootfs(sandbox)
    first = await bench.driver.create(order(sandbox), rootfs)
    second = await bench.driver.create(order(sandbox), rootfs)
    assert started(pid_of(first)) is None
    assert started(pid_of(second)) is not None


async def test_runc_does_where_crun_is_absent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "NAMES", ("runc",))
    await bench.driver.close()
    async with bench.box() as box:
        assert (await box.run("id", "-u")).out == "0\n"
        assert (await box.python("x = bytearray(512 << 20)")).signal == signal.SIGKILL
        assert await bench.driver.oom_kills(box.name) == 1
        assert "denied" in (await box.run("ls", "/proc/1/exe")).err
    assert await bench.driver.leftovers() == frozenset()
    await bench.driver.close()


@pytest.mark.parametrize("name", ["../etc", "a/b", "", ".engine", "x" * 200])
async def test_an_id_that_is_a_path_reaches_nothing(bench: Bench, name: str) -> None:
    with pytest.raises(NoSuchSandbox):
        await bench.driver.destroy(name)


async def test_a_home_with_a_long_name_works(bench: Bench, tmp_path: Path) -> None:
    driver = ContainerDriver(tmp_path / ("long-" * 30))
    bench.driver, former = driver, bench.driver
    async with bench.box() as box:
        assert (await box.run("true")).code == 0
    await driver.close()
    bench.driver = former
