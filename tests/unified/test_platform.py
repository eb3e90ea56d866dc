"""The same through the whole platform: a pause asked for by a client."""

from pathlib import Path

from dsec.sdk import Sandbox
from tests.unified.conftest import UNIFIED

pytestmark = UNIFIED

FILE = 32 << 20


def charged(sandbox: Sandbox) -> int:
    (group,) = Path("/sys/fs/cgroup/dsec").glob(f"*/{sandbox.id}")
    return int((group / "memory.current").read_text())


async def test_a_pause_gives_memory_to_the_machine_and_a_resume_goes_on(sandbox: Sandbox) -> None:
    said = await sandbox.run(f"head -c {FILE} /dev/urandom > /big; sync /big; sha256sum /big")
    before = charged(sandbox)
    assert before > FILE
    await sandbox.pause()
    assert charged(sandbox) < before - FILE // 2
    await sandbox.resume()
    assert (await sandbox.run(["sha256sum", "/big"])).stdout == said.stdout
