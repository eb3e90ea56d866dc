"""A paused sandbox gives its memory to the machine and loses nothing."""

import pytest

from dsec.bus import ids
from dsec.bus.errors import InfraError, NoSuchSandbox
from tests.container.conftest import Bench, Box
from tests.container.usage import memory_of

pytestmark = pytest.mark.node

FILE = 24 << 20
READ = f"head -c {FILE} /dev/urandom > /big; sync /big; sha256sum /big"


async def test_the_file_cache_of_a_paused_sandbox_is_taken_and_comes_back(bench: Bench, box: Box) -> None:
    said = await box.run("sh", "-c", READ)
    before = memory_of(bench.driver, box.name)
    assert before > FILE
    await bench.driver.pause(box.name)
    await bench.driver.reclaim(box.name)
    await bench.driver.reclaim(box.name)
    assert memory_of(bench.driver, box.name) < before - FILE // 2
    await bench.driver.resume(box.name)
    assert await box.run("sha256sum", "/big") == said


async def test_only_a_paused_sandbox_gives_its_memory(bench: Bench, box: Box) -> None:
    with pytest.raises(InfraError, match="is not paused"):
        await bench.driver.reclaim(box.name)
    with pytest.raises(NoSuchSandbox):
        await bench.driver.reclaim(ids.sandbox_on("n-test"))
