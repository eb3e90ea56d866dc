"""The test bed itself: exact results, deadlines, and nothing left of a machine, however it ends."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dsec.bus.errors import InfraError
from dsec.plugins.images.base import cache
from dsec.sdk.testing.pace import within
from tests.vm import image, machine
from tests.vm.cargo import REPORT, Job

pytestmark = [pytest.mark.vm, pytest.mark.slow]

LONG = within(120)
RUNNER = """
import asyncio, sys
from tests.vm import image, machine
from tests.vm.cargo import Job
job = Job(["sh", "-c", "echo up; sleep 600"], {}, base=False)
asyncio.run(machine.run(image.present(), job, within=600, output=lambda chunk: print(chunk, flush=True)))
"""


@pytest.fixture(scope="session")
def guest() -> image.Guest:
    made = image.present()
    if shutil.which(machine.QEMU) is None or not made.is_sound():
        pytest.skip("there is no guest: make test-vm makes it")
    return made


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = set(cache().rglob("*"))
    yield
    assert machines() == []
    assert set(cache().rglob("*")) <= before


def machines() -> list[int]:
    """Pids of the virtual machines that this process or a child of it has started."""
    return [child.pid for child in psutil.Process().children(recursive=True) if "qemu" in child.name()]


def job(script: str) -> Job:
    return Job(["sh", "-c", script], {"GREETING": "it's $HOME"}, base=False)


async def test_the_guest_is_what_the_tests_need_and_what_a_job_tells_comes_back_exactly(
    guest: image.Guest,
) -> None:
    chunks: list[bytes] = []
    script = f"printf 'a\\nb' > {REPORT}"
    script += """
cat /sys/fs/cgroup/cgroup.controllers /sys/kernel/security/lsm; echo
grep -c cgroup /proc/mounts; nproc; uname -r
modprobe -a erofs overlay loop fuse veth nf_tables zram && .venv/bin/python -c 'import dsec.sdk; print("ok")'
printf '\\0\\377 %s\\n' "$GREETING"; seq 20000; echo result 0 0; exit 37
"""
    told = await machine.run(guest, job(script), within=LONG, output=chunks.append)
    facts, exact = b"".join(chunks).split(b"\0", 1)
    controllers, modules, hierarchies, cpus, release, imports = facts.decode().splitlines()
    assert told == machine.Result(37, b"a\nb")
    numbers = "".join(f"{number}\n" for number in range(1, 20_001))
    assert exact == b"\xff it's $HOME\n" + numbers.encode() + b"result 0 0\n"
    assert {"cpu", "memory", "pids", "cpuset", "io"} <= set(controllers.split())
    assert {"apparmor", "bpf", "landlock"} <= set(modules.split(","))
    assert (hierarchies, cpus, imports) == ("1", "2", "ok")
    assert release.endswith("cloud-amd64")


async def test_a_machine_past_its_deadline_is_ended(guest: image.Guest) -> None:
    with pytest.raises(InfraError, match="no result within 4 s"):
        await machine.run(guest, job("sleep 600"), within=4, output=lambda _: None)


async def test_a_guest_that_panics_tells_no_result_and_why(guest: image.Guest) -> None:
    with pytest.raises(InfraError, match=r"(?s)without a result.*"):
        await machine.run(guest, job("echo c > /proc/sysrq-trigger"), within=LONG, output=lambda _: None)


async def test_a_machine_dies_with_the_process_that_runs_it(guest: image.Guest) -> None:
    assert guest.kernel.exists()
    runner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUNNER, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert runner.stdout is not None
    async with asyncio.timeout(LONG):
        assert await runner.stdout.readline() == b"b'up\\n'\n"
    (pid,) = machines()
    qemu = psutil.Process(pid)
    runner.send_signal(signal.SIGKILL)
    await runner.wait()
    await asyncio.to_thread(psutil.wait_procs, [qemu], LONG)
    assert not qemu.is_running() or qemu.status() == psutil.STATUS_ZOMBIE
