"""Every limit that is offered is enforced, for real."""

import asyncio
import resource
import time

import pytest

from dsec.bus import ids
from dsec.bus.errors import LimitError, Unsupported
from dsec.bus.spec import Limits
from tests.container.conftest import LIMITS, Bench, Box, order

pytestmark = pytest.mark.node


SPIN = """
import time
end = time.monotonic() + 1
while time.monotonic() < end:
    pass
print(time.process_time())
"""


def limits(**changed: object) -> Limits:
    return LIMITS.model_copy(update=changed)


async def test_a_fork_bomb_ends_at_the_limit_and_the_agent_answers(box: Box) -> None:
    probe = """
import os, signal, time
children = []
try:
    while len(children) < 1000:
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        children.append(pid)
except BlockingIOError:
    pass
print(len(children))
for pid in children:
    os.kill(pid, signal.SIGKILL)
"""
    said = await box.python(probe)
    assert 32 < int(said.out) < 64
    await box.guest.ping()


async def test_memory_over_the_limit_kills_the_command_not_the_agent(bench: Bench, box: Box) -> None:
    assert await bench.driver.oom_kills(box.name) == 0
    said = await box.python("x = bytearray(512 << 20); print('allocated')")
    assert (said.signal, said.out) == (9, "")
    assert await bench.driver.oom_kills(box.name) == 1
    await box.guest.ping()
    assert await bench.driver.inspect(box.name) is None


async def test_memory_of_a_file_in_dev_shm_counts_too(bench: Bench) -> None:
    async with bench.box(limits(memory=32 << 20)) as box:
        said = await box.run("sh", "-c", "head -c 60000000 /dev/zero > /dev/shm/x; ls -l /dev/shm | wc -l")
        assert await bench.driver.oom_kills(box.name) >= 1, said


async def test_descriptors_are_limited_and_the_limit_cannot_be_raised(box: Box) -> None:
    probe = """
import resource
print(resource.getrlimit(resource.RLIMIT_NOFILE))
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (9999, 9999))
except ValueError:
    print("refused")
try:
    keep = [open("/dev/null") for _ in range(1000)]
except OSError as error:
    print(error.errno)
"""
    assert (await box.python(probe)).out == "(256, 256)\nrefused\n24\n"


async def test_cpu_time_stays_under_the_limit(bench: Bench) -> None:
    async with bench.box(limits(cpu=0.2)) as box:
        before = time.monotonic()
        said = await box.python(SPIN)
        took = time.monotonic() - before
        assert float(said.out) < 0.2 * took + 0.15


async def test_the_limits_are_in_the_kernels_files(bench: Bench) -> None:
    async with bench.box(limits(cpu=0.5, pids=33), cpu_class="besteffort") as box:
        layout, path = bench.driver._cgroups().layout, bench.driver._cgroups().of(box.name).path
        assert (layout.at("pids") / path / "pids.max").read_text() == "33\n"
        if "cpu" in layout.v1:
            assert (layout.at("cpu") / path / "cpu.cfs_quota_us").read_text() == "50000\n"
            assert (layout.at("cpu") / path / "cpu.shares").read_text() == "2\n"
        else:
            assert (layout.at("cpu") / path / "cpu.max").read_text() == "50000 100000\n"
            assert (layout.at("cpu") / path / "cpu.weight").read_text() == "1\n"


async def test_too_little_memory_to_start_is_a_limit_and_leaves_nothing(bench: Bench) -> None:
    sandbox = ids.sandbox_on("n-test")
    rootfs = await bench.rootfs(sandbox)
    tiny = limits(memory=64 << 10)
    with pytest.raises(LimitError, match=r"limits\.memory"):
        await bench.driver.create(order(sandbox, tiny), rootfs)
    assert sandbox not in await bench.driver.leftovers()


async def test_the_least_memory_that_a_spec_may_ask_for_starts(bench: Bench) -> None:
    async with bench.box(limits(memory=4 << 20)) as box:
        assert (await box.run("true")).code == 0


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"disk": 1 << 30}, "limits.disk"),
        ({"pids": 1 << 22}, "limits.pids"),
        ({"nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1] + 1}, "limits.nofile"),
        ({"cpu": 0.001}, "limits.cpu"),
    ],
)
async def test_what_cannot_be_enforced_is_refused_by_field(
    bench: Bench, changed: dict[str, float], field: str
) -> None:
    sandbox = ids.sandbox_on("n-test")
    with pytest.raises(Unsupported) as caught:
        await bench.driver.create(order(sandbox, limits(**changed)), await bench.rootfs(sandbox))
    assert caught.value.field == field
    assert sandbox not in await bench.driver.leftovers()


async def test_the_platforms_defaults_are_told(bench: Bench) -> None:
    info = bench.driver.info()
    assert info.limits == {"cpu", "memory", "pids", "nofile", "log_bytes"}
    assert info.defaults.asked() == info.limits


async def test_one_sandbox_at_its_limit_leaves_another_alone(bench: Bench) -> None:
    async with bench.box(limits(memory=32 << 20)) as greedy, bench.box() as modest:
        _, fine = await asyncio.gather(
            greedy.python("x = bytearray(512 << 20)"), modest.python("x = bytearray(100 << 20); print('ok')")
        )
        assert fine.out == "ok\n"
        assert await bench.driver.oom_kills(modest.name) == 0
