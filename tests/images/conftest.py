"""A home with small layers, a way to act as the inside's root, and the promise that nothing is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pytest

from dsec.bus.driver import Rootfs
from dsec.bus.spec import Image
from dsec.plugins.images import ErofsImages, kernel, layers

IMAGE = Image(base="base", workspace="task")


class Inside(Protocol):
    """Runs a function with the file rights of the inside's root (or another id of the inside)."""

    async def __call__(self, rootfs: Rootfs, work: Callable[[], object], uid: int = 0) -> None: ...


@pytest.fixture(autouse=True)
def _node() -> None:
    if os.geteuid() != 0 or shutil.which("mkfs.erofs") is None:
        pytest.skip("needs root and erofs-utils")


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    with ThreadPoolExecutor(1) as thread:

        async def act(rootfs: Rootfs, work: Callable[[], object], uid: int = 0) -> None:
            def body() -> None:
                with kernel.acting_as(rootfs.uid_base + uid):
                    work()

            await asyncio.get_running_loop().run_in_executor(thread, body)

        yield act


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """A base with `d/old` and the usual directories, and a workspace with `work/main.py`."""
    base, task = tmp_path / "trees" / "base", tmp_path / "trees" / "task"
    for name in ("etc", "d", "tmp", "work"):
        (base / name).mkdir(parents=True)
    (base / "tmp").chmod(0o1777)
    (base / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (base / "d" / "old").write_text("old")
    (task / "work").mkdir(parents=True)
    (task / "work" / "main.py").write_text("print(1)\n")
    return base, task


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Nothing is mounted in it once the test is over."""
    yield tmp_path / "home"
    left = mounts(tmp_path)
    for point in reversed(left):
        kernel.unmount(point, kernel.MNT_DETACH)
    assert left == []


@pytest.fixture
async def images(home: Path, trees: tuple[Path, Path]) -> AsyncIterator[ErofsImages]:
    """Has layers `base` and `task`; all sandboxes are released at the end."""
    async with ErofsImages(home) as images:
        await images.import_tree("base", trees[0], "base")
        await images.import_tree("task", trees[1], "workspace")
        yield images
        for sandbox in await images.composed():
            await images.release(sandbox)


@pytest.fixture
async def rootfs(images: ErofsImages) -> Rootfs:
    """Composed as sandbox `s-n-test0001`."""
    return await images.compose("s-n-test0001", IMAGE)


def mounts(below: Path) -> list[str]:
    """Mount points below a directory, in the order they were mounted."""
    found = layers.mount_points(Path("/proc/self/mountinfo").read_bytes())
    return [os.fsdecode(point) for point in found if point.startswith(os.fsencode(below))]


def entries(below: Path) -> list[str]:
    """Every path below a home but the workings of the catalog."""
    return sorted(str(path.relative_to(below)) for path in below.rglob("*") if not path.is_mount())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """Makes an ext4 of that size, with further mkfs options, and mounts it; unmounted at the end."""
    made: list[Path] = []

    def make(size: str, options: str = "") -> Path:
        image, point = tmp_path / f"disk{len(made)}.img", tmp_path / f"disk{len(made)}"
        point.mkdir()
        subprocess.run(["truncate", "-s", size, image], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-m0", *options.split(), image], check=True)
        subprocess.run(["mount", "-o", "loop", image, point], check=True)
        made.append(point)
        return point

    yield make
    for point in made:
        subprocess.run(["umount", point], check=True)


async def run(*command: str | Path, check: bool = True) -> int:
    """Run a program; its exit status, negative for a signal."""
    process = await asyncio.create_subprocess_exec(*command)
    status = await process.wait()
    assert not check or status == 0, command
    return status
