"""kill -9 of the process that creates sandboxes, at any moment: their ids are enough to remove them."""

import asyncio
import signal
import sys
from pathlib import Path

import psutil
import pytest

from dsec.bus import ids
from dsec.plugins.container import ContainerDriver
from dsec.plugins.container.cgroups import until
from dsec.sdk.testing.pace import some, within
from tests.container.conftest import Bench, order

pytestmark = [pytest.mark.node, pytest.mark.kill]

CREATE = """
import asyncio, sys
from pathlib import Path
from dsec.bus.driver import Rootfs
from dsec.plugins.container import ContainerDriver
from tests.container.conftest import order

async def main(home, sandbox, root, uid_base):
    driver = ContainerDriver(Path(home))
    driver._running()
    print("ready", flush=True)
    await driver.create(order(sandbox), Rootfs(Path(root), Path(root), int(uid_base)))
    print("created", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


def engines(home: Path) -> list[psutil.Process]:
    """Engine processes that work for `home`."""
    working = psutil.process_iter(["cmdline"])
    return [one for one in working if str(home / ".engine") in (one.info["cmdline"] or [])]


async def create_and_kill(bench: Bench, sandbox: str, after: float) -> None:
    rootfs = await bench.rootfs(sandbox)
    node = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CREATE, str(bench.driver.home), sandbox, str(rootfs.path), str(rootfs.uid_base),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert node.stdout is not None
    assert await node.stdout.readline() == b"ready\n"
    await asyncio.sleep(after)
    node.send_signal(signal.SIGKILL)
    await node.communicate()


async def test_nothing_is_left_whenever_the_node_was_killed(bench: Bench) -> None:
    for milliseconds in map(within, some(range(0, 45, 5))):
        sandbox = ids.sandbox_on("n-test")
        await create_and_kill(bench, sandbox, milliseconds / 1000)
        fresh = ContainerDriver(bench.driver.home)
        await fresh.destroy(sandbox)
        await until(lambda: not engines(bench.driver.home), "the end of the engine")
        assert await fresh.leftovers() == frozenset()
        await bench.images.release(sandbox)
        await fresh.close()


async def test_a_new_create_of_the_same_id_works_at_once_after_a_kill(bench: Bench) -> None:
    sandbox = ids.sandbox_on("n-test")
    await create_and_kill(bench, sandbox, within(0.012))
    handle = await bench.driver.create(order(sandbox), await bench.images.recover(sandbox))
    assert handle.sandbox == sandbox
    assert await bench.driver.inspect(sandbox) is None
