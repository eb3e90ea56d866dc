"""Warm workers: whose they are, how they end, what is left: nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from dsec.bus.errors import DeadlineExceeded, DsecError, InfraError, NoSuchImage, Overloaded
from dsec.plugins.fncall.groups import Groups
from dsec.plugins.images import ErofsImages
from tests.fncall.conftest import Calls, calling

pytestmark = pytest.mark.node
GROUPS = Path("/sys/fs/cgroup")


def _parent_chain(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def zygotes(others: list[int] | tuple[int, ...] = ()) -> list[int]:
    """Pids of warm Pythons below this process, but for those of `others`, which tests share."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            words[0] == b"/usr/bin/python3"
            and int(entry.name) not in others
            and _parent_chain(int(entry.name))
        ):
            found.append(int(entry.name))
    return found


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_nothing_is_left_when_a_caller_ends(images: ErofsImages, tmp_path: Path) -> None:
    others = zygotes()
    before, group = await images.composed(), Groups.here(tmp_path).parent
    await asyncio.sleep(0.5)  # a caller that tests share has boxes on their way
    descriptors = _descriptors()
    async with calling(images, tmp_path) as call:
        results = await asyncio.gather(
            *(
                call("import os; os.fork() or os.setsid()\nwhile True: pass", limits={"wall": 0.3})
                for _ in "abc"
            ),
            call("exit 3", language="sh"),
        )
        assert [one.ended for one in results] == ["timeout"] * 3 + ["exit"]
        made = await images.composed() - before
        assert len(made) == 2
        assert all(name in Path("/proc/self/mountinfo").read_text() for name in made)
        assert list(GROUPS.glob(f"*/{group}"))
    assert await images.composed() == before
    assert list(GROUPS.glob(f"*/{group}")) == []
    assert zygotes(others) == []
    assert not any(name in Path("/proc/self/mountinfo").read_text() for name in made)
    assert _descriptors() <= descriptors + 2  # user namespaces that `images` keeps


async def test_a_worker_is_of_one_project_and_one_set_of_libraries(
    images: ErofsImages, tmp_path: Path
) -> None:
    others = zygotes()
    async with calling(images, tmp_path) as call:
        for project, imports, warm in (
            ("p-one", [], False),
            ("p-one", [], True),
            ("p-two", [], False),
            ("p-one", ["json", "numpy"], False),
            ("p-two", [], True),
        ):
            assert (await call("1", project=project, imports=imports)).warm is warm
        assert len(zygotes(others)) == 3


async def test_a_library_is_imported_before_the_call(call: Calls) -> None:
    source = "import sys\ndef f():\n    return 'numpy' in sys.modules, 'numpy.linalg' in sys.modules\n"
    assert (await call(source, entry="f")).value == [False, False]
    assert (await call(source, entry="f", imports=["numpy"])).value == [True, True]


async def test_a_warm_worker_that_is_killed_is_replaced(images: ErofsImages, tmp_path: Path) -> None:
    others = zygotes()
    async with calling(images, tmp_path) as call:
        assert not (await call("1")).warm
        [zygote] = zygotes(others)
        running = asyncio.ensure_future(call("import time; time.sleep(30)"))
        await asyncio.sleep(0.3)
        os.kill(zygote, signal.SIGKILL)
        with pytest.raises(InfraError):
            await asyncio.wait_for(running, 10)
        assert (await call("print('again')")).code == 0
        assert zygote not in zygotes(others)


async def test_the_first_process_of_a_worker_may_be_killed_too(images: ErofsImages, tmp_path: Path) -> None:
    others = zygotes()
    async with calling(images, tmp_path) as call:
        await call("1")
        [zygote] = zygotes(others)
        stem = int(Path(f"/proc/{zygote}/stat").read_text().rpartition(")")[2].split()[1])
        running = asyncio.ensure_future(call("import time; time.sleep(30)"))
        await asyncio.sleep(0.3)
        os.kill(stem, signal.SIGKILL)
        with pytest.raises(DsecError):
            await asyncio.wait_for(running, 10)
        assert (await call("1")).code == 0


async def test_idle_workers_end_and_the_oldest_makes_room(images: ErofsImages, tmp_path: Path) -> None:
    others = zygotes()
    async with calling(images, tmp_path, workers=2, idle=1.0) as call:
        for project in ("p-a", "p-b", "p-c"):
            await call("1", project=project)
        assert (await call("1", project="p-c")).warm
        async with asyncio.timeout(20):
            while zygotes(others):  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.1)
        assert not (await call("1", project="p-c")).warm


async def test_when_all_workers_are_busy_others_are_told_at_once(images: ErofsImages, tmp_path: Path) -> None:
    async with calling(images, tmp_path, workers=1) as call:
        running = asyncio.ensure_future(call("import time; time.sleep(1)", project="p-a"))
        await asyncio.sleep(0.4)
        with pytest.raises(Overloaded) as raised:
            await call("1", project="p-b")
        assert raised.value.retry_after
        assert (await running).code == 0
        assert (await call("1", project="p-b")).code == 0


async def test_a_call_that_is_cancelled_or_late_leaves_its_place(images: ErofsImages, tmp_path: Path) -> None:
    async with calling(images, tmp_path, at_once=1) as call:
        for _ in range(3):
            running = asyncio.ensure_future(call("while True: pass"))
            await asyncio.sleep(0.3)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        with pytest.raises(DeadlineExceeded):
            await call("while True: pass", within=0.3)
        assert (await call("1")).code == 0


async def test_writing_ends_before_the_answer(call: Calls) -> None:
    """stella PR#2198: a loop that outlives its deadline and goes on writing."""
    mark = "written-by-a-call-that-is-late"
    source = f"trap '' TERM; setsid sh -c 'while :; do echo x >> {mark}; done' & while :; do :; done"
    running = asyncio.ensure_future(call(source, language="sh", limits={"wall": 1.0}))
    async with asyncio.timeout(10):
        while not _writers(mark):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.02)
    assert (await running).ended == "timeout"
    assert not _writers(mark)


def _writers(mark: str) -> list[Path]:
    return [one for one in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in _read(one)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_an_image_that_is_not_there_or_has_no_python_is_told(call: Calls) -> None:
    with pytest.raises(NoSuchImage):
        await call("1", image="never-imported")
    assert (await call("echo still works", language="sh")).code == 0
