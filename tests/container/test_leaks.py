"""Nothing is left: after many cycles, and after a failure of each step of a start."""

import asyncio
from collections import Counter
from pathlib import Path

import psutil
import pytest

from dsec.bus import ids
from dsec.bus.driver import Rootfs
from dsec.bus.errors import DsecError, InfraError, MissingTool
from dsec.plugins.container import door, driver, engine
from dsec.plugins.container.cgroups import Group
from dsec.sdk.testing.traces import network_of, paths
from tests.container.conftest import Bench, order

pytestmark = pytest.mark.node


POOLED = {"user", "/proc/self/fd"}
"""Descriptors that are no leak: user namespaces, which images keeps for later, and this look itself."""


class Traces:
    """What a sandbox could leave on this host, as far as this test's driver made it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.descriptors = self.now_descriptors()

    @staticmethod
    def now_descriptors() -> Counter[str]:
        names = []
        for one in Path("/proc/self/fd").iterdir():
            try:
                names.append(str(one.readlink()).split(":", 1)[0])
            except OSError:
                continue
        return Counter(names)

    def left(self) -> list[str]:
        home = self.bench.driver.home
        layout = self.bench.driver._cgroups().layout
        parent = self.bench.driver._cgroups().parent
        files = [path for path in paths(home) if not path.endswith("/.engine") and "/.cache" not in path]
        cgroups = [str(path) for root in layout.roots for path in (root / parent).iterdir() if path.is_dir()]
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(home) in line]
        processes = [str(child) for child in psutil.Process().children() if "crun" in child.name()]
        descriptors = self.now_descriptors() - self.descriptors
        return files + cgroups + mounts + processes + [name for name in descriptors if name not in POOLED]


@pytest.fixture
async def traces(bench: Bench) -> Traces:
    async with bench.box():
        pass
    return Traces(bench)


async def test_fifty_cycles_leave_nothing(bench: Bench, traces: Traces) -> None:
    for _ in range(50):
        async with bench.box() as box:
            with network_of(box.name) as still_used:
                assert len(still_used()) == 1
                await bench.driver.destroy(box.name)
                assert still_used() == set()
    assert traces.left() == []


async def test_thirty_two_at_once_are_separate_and_leave_nothing(bench: Bench, traces: Traces) -> None:
    async def one(number: int) -> str:
        async with bench.box() as box:
            await box.run("sh", "-c", f"echo {number} > /number")
            return (await box.run("cat", "/number")).out

    assert await asyncio.gather(*map(one, range(32))) == [f"{number}\n" for number in range(32)]
    assert traces.left() == []


def _break(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(28 if what == "disk" else 5, "made to fail")

    broken = tmp_path / "broken"
    broken.write_text("not a program")
    targets = {
        "adopt": (Group, "adopt", fail),
        "cgroup": (Group, "make", fail),
        "disk": (Group, "make", fail),
        "door": (door, "listening", fail),
        "agent": (driver, "binary", lambda: broken),
        "no agent": (driver, "binary", lambda: tmp_path / "absent"),
        "engine": (engine, "find", lambda: broken),
        "pid file": (engine, "PID_FILE", "absent/pid"),
    }
    monkeypatch.setattr(*targets[what])


@pytest.mark.parametrize(
    "what", ["adopt", "cgroup", "disk", "door", "agent", "no agent", "engine", "pid file"]
)
async def test_a_failing_step_is_typed_and_leaves_nothing(
    bench: Bench, traces: Traces, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    await bench.driver.close()
    sandbox = ids.sandbox_on("n-test")
    rootfs = await bench.rootfs(sandbox)
    before = Traces(bench)
    with monkeypatch.context() as broken:
        _break(broken, tmp_path, what)
        for _ in range(3):
            with pytest.raises(DsecError) as caught:
                await bench.driver.create(order(sandbox), rootfs)
            assert isinstance(caught.value, InfraError)
    assert caught.value.code == ("disk_full" if what == "disk" else "infra")
    await bench.driver.close()
    assert before.left() == []
    await bench.driver.create(order(sandbox), rootfs)


async def test_a_missing_engine_is_told_with_its_package(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingTool, match="apt-get install crun"):
        await bench.driver.check()


async def test_a_root_file_system_that_is_not_there_is_typed(
    bench: Bench, traces: Traces, tmp_path: Path
) -> None:
    absent, empty = tmp_path / "absent", tmp_path / "file"
    empty.write_text("")
    for path in (absent, empty):
        with pytest.raises(InfraError, match="not mounted"):
            await bench.driver.create(order(ids.sandbox_on("n-test")), Rootfs(path, path, 1_000_000))
    assert traces.left() == []


async def test_a_create_that_is_cancelled_at_any_moment_leaves_nothing(bench: Bench, traces: Traces) -> None:
    sandbox = ids.sandbox_on("n-test")
    rootfs = await bench.rootfs(sandbox)
    for milliseconds in range(0, 30, 2):
        creating = asyncio.ensure_future(bench.driver.create(order(sandbox), rootfs))
        await asyncio.wait([creating], timeout=milliseconds / 1000)
        creating.cancel()
        await asyncio.wait([creating])
        await bench.driver.destroy(sandbox)
    assert traces.left() == []


async def test_no_zombie_of_a_destroyed_sandbox_stays_with_the_node(bench: Bench) -> None:
    before = {child.pid for child in psutil.Process().children()}
    for _ in range(3):
        sandbox = ids.sandbox_on("n-test")
        await bench.driver.create(order(sandbox), await bench.rootfs(sandbox))
        await bench.driver.destroy(sandbox)
    new = [child for child in psutil.Process().children() if child.pid not in before]
    assert [child for child in new if child.status() == psutil.STATUS_ZOMBIE] == []
