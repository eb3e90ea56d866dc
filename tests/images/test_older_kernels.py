"""What kernels before 6.13 need works on every kernel: attached layers, loop devices."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.plugins.images import ErofsImages, kernel, loop
from dsec.plugins.images.kernel import version
from tests.images.conftest import IMAGE, Inside, entries, mounts, run

SANDBOX = "s-n-test0001"
NEVER = (99, 0)


@pytest.fixture
async def older(
    home: Path, trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ErofsImages]:
    """Images that take this kernel for one which mounts neither files nor descriptors."""
    monkeypatch.setattr(kernel, "FILE_BACKED", NEVER)
    monkeypatch.setattr(kernel, "DESCRIPTORS", NEVER)
    async with ErofsImages(home) as images:
        await images.import_tree("base", trees[0], "base")
        await images.import_tree("task", trees[1], "workspace")
        yield images
        for sandbox in await images.composed():
            await images.release(sandbox)


def loop_devices(home: Path) -> list[str]:
    said = subprocess.run(["losetup", "-nlO", "BACK-FILE"], check=True, capture_output=True, text=True)
    return [line for line in said.stdout.splitlines() if line.startswith(str(home))]


@pytest.mark.parametrize(
    ("release", "found"),
    [("6.1.0-57-cloud-amd64", (6, 1)), ("6.18.44-fc", (6, 18)), ("6.13-rc1", (6, 13))],
)
def test_a_release_is_read_as_a_version(release: str, found: tuple[int, int]) -> None:
    assert version(release) == found


async def test_layers_are_mounted_by_loop_devices_which_end_with_the_mounts(
    older: ErofsImages, home: Path, inside: Inside
) -> None:
    rootfs = await older.compose(SANDBOX, IMAGE)
    assert len(loop_devices(home)) == 2
    await inside(rootfs, lambda: (rootfs.path / "work" / "new").write_text("new"))
    assert (rootfs.path / "d" / "old").read_text() == "old"
    assert (rootfs.upper / "work" / "new").stat().st_uid == 0
    assert [point for point in mounts(home) if "/sandboxes/" in point] == [str(rootfs.path)]
    await older.release(SANDBOX)
    await older.close()
    assert mounts(home) == loop_devices(home) == []
    assert not [entry for entry in entries(home) if SANDBOX in entry]


async def test_a_writable_layer_is_mounted_again_after_a_restart_of_the_machine(
    older: ErofsImages, inside: Inside
) -> None:
    rootfs = await older.compose(SANDBOX, IMAGE)
    await inside(rootfs, lambda: (rootfs.path / "kept").write_text("kept"))
    kernel.unmount(rootfs.path)
    again = await older.recover(SANDBOX)
    assert (again.path / "kept").read_text() == "kept"


async def test_what_was_staged_when_the_node_was_killed_is_unmounted(older: ErofsImages, home: Path) -> None:
    rootfs = await older.compose(SANDBOX, IMAGE)
    stage = rootfs.path.parent / "stage"
    stage.mkdir()
    for _ in range(3):
        await run("mount", "--bind", home, stage)
    await older.release(SANDBOX)
    assert not [point for point in mounts(home) if "/sandboxes/" in point]


def test_a_file_is_attached_once_and_read_only(home: Path) -> None:
    home.mkdir()
    file = home / "file"
    file.write_bytes(b"x" * 4096)
    with loop.attached(file) as device, loop.attached(file) as other:
        assert device != other
        assert device.read_bytes() == b"x" * 4096
        with pytest.raises(OSError, match=r"not permitted|Read-only"):
            device.write_bytes(b"y")
    assert loop_devices(home) == []
