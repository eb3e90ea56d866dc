"""Root file systems: what is inside, what is left behind, and what a crash does to them."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from dsec.bus.driver import Rootfs
from dsec.bus.errors import BadId, Conflict, DiskFull, InfraError, MissingTool, NoSuchImage, NoSuchSandbox
from dsec.bus.spec import Image
from dsec.plugins.images import ErofsImages
from dsec.plugins.images.rootfs import unmount
from tests.images.conftest import IMAGE, Inside, entries, mounts, run

pytestmark = pytest.mark.node
SANDBOX = "s-n-test0001"


async def test_the_layers_are_seen_as_one_tree_owned_by_the_insides_root(rootfs: Rootfs) -> None:
    assert (rootfs.path / "work" / "main.py").read_text() == "print(1)\n"
    assert (rootfs.path / "d" / "old").stat().st_uid == rootfs.uid_base
    assert (rootfs.path / "tmp").stat().st_mode & 0o7777 == 0o1777


async def test_what_the_inside_writes_is_in_upper_with_the_insides_owners(
    rootfs: Rootfs, inside: Inside
) -> None:
    await inside(rootfs, lambda: (rootfs.path / "work" / "mine").write_text("x"))
    await inside(rootfs, lambda: (rootfs.path / "tmp" / "theirs").write_text("x"), uid=1000)
    assert (rootfs.upper / "work" / "mine").stat().st_uid == 0
    assert (rootfs.upper / "tmp" / "theirs").stat().st_gid == 1000
    assert (rootfs.path / "tmp" / "theirs").stat().st_uid == rootfs.uid_base + 1000


async def test_only_root_of_the_host_can_reach_set_uid_files_of_the_inside(rootfs: Rootfs) -> None:
    assert rootfs.upper.parent.stat().st_mode & 0o077 == 0
    assert rootfs.path.parent.stat().st_mode & 0o777 == 0o711


async def test_fifty_sandboxes_leave_mounts_and_directories_as_they_were(
    images: ErofsImages, home: Path, inside: Inside
) -> None:
    rootfs = await images.compose(SANDBOX, IMAGE)
    await images.release(SANDBOX)
    before = mounts(home), entries(home), _open_descriptors()
    for _ in range(50):
        rootfs = await images.compose(SANDBOX, IMAGE)
        await inside(rootfs, lambda: (rootfs.path / "work" / "f").write_text("x"))  # noqa: B023  (runs at once)
        await images.release(SANDBOX)
    assert (mounts(home), entries(home), _open_descriptors()) == before


async def test_release_may_be_repeated_and_is_silent_for_what_never_was(images: ErofsImages) -> None:
    await images.compose(SANDBOX, IMAGE)
    for _ in range(3):
        await images.release(SANDBOX)
    await images.release("s-n-never000")
    assert await images.composed() == frozenset()


async def test_a_sandbox_is_composed_once(images: ErofsImages, rootfs: Rootfs) -> None:
    with pytest.raises(Conflict):
        await images.compose(SANDBOX, IMAGE)
    assert (rootfs.path / "d" / "old").exists()


async def test_a_sandbox_id_that_is_a_path_is_refused(images: ErofsImages) -> None:
    for call in (images.release, images.recover):
        with pytest.raises(BadId):
            await call("../../etc")


async def test_an_unknown_layer_is_told_by_name(images: ErofsImages, home: Path) -> None:
    with pytest.raises(NoSuchImage, match="nowhere"):
        await images.compose(SANDBOX, Image(base="base", workspace="nowhere"))
    assert await images.composed() == frozenset()


@pytest.mark.parametrize("damage", ["gone", "overwritten", "cut"])
async def test_a_lost_layer_file_fails_the_create_and_leaves_nothing(
    images: ErofsImages, home: Path, damage: str
) -> None:
    layer = home / "layers" / f"{(await images.layers())[1].digest}.erofs"
    spoil: dict[str, Callable[[], object]] = {
        "gone": layer.unlink,
        "overwritten": lambda: layer.write_bytes(bytes(8192)),
        "cut": lambda: os.truncate(layer, 2048),
    }
    spoil[damage]()
    before = mounts(home)
    with pytest.raises(InfraError, match="import it again"):
        await images.compose(SANDBOX, IMAGE)
    assert await images.composed() == frozenset()
    assert set(mounts(home)) - set(before) <= {str(home / "mnt" / (await images.layers())[0].digest)}
    await images.compose("s-n-test0002", Image(base="base"))


async def test_running_out_of_descriptors_at_any_step_leaves_nothing(images: ErofsImages, home: Path) -> None:
    await images.compose(SANDBOX, IMAGE)
    await images.release(SANDBOX)
    before = mounts(home), entries(home)
    outcomes = []
    for spare in range(24):
        images._namespaces.close()
        with _descriptors(spare):
            try:
                await images.compose(SANDBOX, IMAGE)
                outcomes.append("made")
            except InfraError:
                outcomes.append("failed")
        if outcomes[-1] == "made":
            await images.release(SANDBOX)
        assert (mounts(home), entries(home)) == before, spare
    assert outcomes.count("failed") > 5
    assert outcomes[-1] == "made"


async def test_a_cancelled_compose_leaves_nothing(images: ErofsImages, home: Path) -> None:
    await images.compose(SANDBOX, IMAGE)
    await images.release(SANDBOX)
    before = mounts(home), entries(home)
    for steps in range(12):
        task = asyncio.create_task(images.compose(SANDBOX, IMAGE))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        done = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(done, Rootfs):
            await images.release(SANDBOX)
        assert (mounts(home), entries(home)) == before, steps


async def test_a_full_disk_is_told_and_leaves_nothing(
    small_disk: Callable[..., Path], trees: tuple[Path, Path]
) -> None:
    home = small_disk("8M", "-N 64")
    async with ErofsImages(home) as images:
        await images.import_tree("base", trees[0], "base")
        names = [f"s-n-test{number:04}" for number in range(64)]
        outcomes = [await _outcome(images.compose(name, Image(base="base"))) for name in names]
        made = {name for name, error in zip(names, outcomes, strict=True) if error is None}
        assert {type(error) for error in outcomes} == {type(None), DiskFull}
        assert await images.composed() == made
        for sandbox in made:
            await images.release(sandbox)


async def test_a_read_only_home_is_told_and_leaves_nothing(
    small_disk: Callable[..., Path], trees: tuple[Path, Path]
) -> None:
    home = small_disk("8M")
    async with ErofsImages(home) as images:
        await images.import_tree("base", trees[0], "base")
        await images.compose(SANDBOX, Image(base="base"))
        await images.release(SANDBOX)
        await run("mount", "-o", "remount,ro", home)
        with pytest.raises(InfraError, match="Read-only"):
            await images.compose(SANDBOX, Image(base="base"))
        await run("mount", "-o", "remount,rw", home)
        assert await images.composed() == frozenset()


async def test_a_home_on_tmpfs_is_refused_with_advice(tmp_path: Path, trees: tuple[Path, Path]) -> None:
    await run("mount", "-t", "tmpfs", "-o", "size=8m", "none", tmp_path)
    try:
        async with ErofsImages(tmp_path / "home") as images:
            (tmp_path / "tree").mkdir()
            await images.import_tree("base", tmp_path / "tree", "base")
            with pytest.raises(MissingTool, match="ext4 or xfs"):
                await images.compose(SANDBOX, Image(base="base"))
            assert await images.composed() == frozenset()
        assert mounts(tmp_path) == [str(tmp_path)]
    finally:
        await run("umount", tmp_path)


async def test_thirty_two_at_once_share_the_mounts_of_two_images(images: ErofsImages, home: Path) -> None:
    names = [f"s-n-test{number:04}" for number in range(32)]
    chosen = [IMAGE if number % 2 else Image(base="base") for number in range(32)]
    made = await asyncio.gather(*map(images.compose, names, chosen))
    assert len({rootfs.uid_base for rootfs in made}) == 32
    assert len([point for point in mounts(home) if "/mnt/" in point]) == 2
    await asyncio.gather(*map(images.release, names))
    assert not [point for point in mounts(home) if "/sandboxes/" in point]
    again = await images.compose(SANDBOX, IMAGE)
    assert again.uid_base == min(rootfs.uid_base for rootfs in made)


async def test_the_same_layer_twice_counts_once(images: ErofsImages) -> None:
    rootfs = await images.compose(SANDBOX, Image(base="base", workspace="task", toolkits=("task", "base")))
    assert (rootfs.path / "work" / "main.py").exists()


async def test_a_tree_of_any_depth_with_any_names_is_released(
    images: ErofsImages, rootfs: Rootfs, inside: Inside
) -> None:
    def litter() -> None:
        place = os.open(rootfs.path / "work", os.O_RDONLY)
        for name in (b"\xff\x96odd", b"new\nline", b" ", b"-rf"):
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0, dir_fd=place))
        for _ in range(1500):
            os.mkdir(b"\xfe" * 20, dir_fd=place)
            deeper = os.open(b"\xfe" * 20, os.O_RDONLY, dir_fd=place)
            os.fchmod(place, 0)
            os.close(place)
            place = deeper
        os.symlink("/etc", "outside", dir_fd=place)
        os.close(place)

    await inside(rootfs, litter)
    await images.release(SANDBOX)
    assert not rootfs.path.parent.exists()
    assert Path("/etc/passwd").exists()


async def test_a_busy_mount_is_let_go(images: ErofsImages, rootfs: Rootfs, home: Path) -> None:
    with (rootfs.path / "d" / "old").open() as held:
        await images.release(SANDBOX)
        assert held.read() == "old"
    assert not [point for point in mounts(home) if "/sandboxes/" in point]


async def test_without_volatile_the_overlay_is_durable(home: Path, trees: tuple[Path, Path]) -> None:
    for volatile in (False, True):
        async with ErofsImages(home, volatile=volatile) as images:
            await images.import_tree("base", trees[0], "base")
            overlay = await images.compose(SANDBOX, Image(base="base"))
            assert ("volatile" in _options(overlay.path)) is volatile
            await images.release(SANDBOX)


_COMPOSE_AND_DIE = """
import asyncio, os, signal, sys
from pathlib import Path
from dsec.bus.spec import Image
from dsec.plugins.images import ErofsImages
async def main():
    images = ErofsImages(Path(sys.argv[1]))
    rootfs = await images.compose("s-n-test0001", Image(base="base", workspace="task"))
    (rootfs.upper / "kept").write_text("kept")
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.mark.parametrize("unmounted", [False, True])
async def test_a_sandbox_of_a_killed_process_is_recovered(
    images: ErofsImages, home: Path, *, unmounted: bool
) -> None:
    await images.close()
    assert await run(sys.executable, "-c", _COMPOSE_AND_DIE, home, check=False) == -signal.SIGKILL
    if unmounted:  # as after a restart of the machine
        for point in reversed(mounts(home)):
            unmount(Path(point))
    async with ErofsImages(home) as later:
        assert await later.composed() == {SANDBOX}
        rootfs = await later.recover(SANDBOX)
        assert (rootfs.path / "kept").read_text() == "kept"
        assert (rootfs.path / "work" / "main.py").exists()
        other = await later.compose("s-n-test0002", IMAGE)
        assert other.uid_base != rootfs.uid_base
        assert len([point for point in mounts(home) if "/mnt/" in point]) == 2
        for sandbox in await later.composed():
            await later.release(sandbox)


async def test_what_a_crash_left_half_made_is_listed_and_released(images: ErofsImages, home: Path) -> None:
    (home / "sandboxes" / SANDBOX / "data").mkdir(parents=True)
    assert await images.composed() == {SANDBOX}
    with pytest.raises(NoSuchSandbox):
        await images.recover(SANDBOX)
    await images.release(SANDBOX)
    assert await images.composed() == frozenset()


async def test_layers_stay_mounted_for_live_sandboxes_after_close(
    images: ErofsImages, rootfs: Rootfs, home: Path
) -> None:
    await images.import_tree("unused", rootfs.path / "d", "toolkit")
    await images.compose("s-n-test0002", Image(base="base", toolkits=("unused",)))
    await images.release("s-n-test0002")
    await images.close()
    assert len([point for point in mounts(home) if "/mnt/" in point]) == 2
    async with ErofsImages(home) as later:
        await later.release(SANDBOX)
    assert mounts(home) == []


async def _outcome(work: Coroutine[Any, Any, object]) -> InfraError | None:
    try:
        await work
    except InfraError as error:
        return error
    return None


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _options(point: Path) -> str:
    """Options of the file system mounted there: the last column of mountinfo."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return next(line for line in lines if f" {point} " in line).split()[-1]


class _descriptors:  # noqa: N801  (used like a function)
    """Within the block exactly `spare` descriptors can be opened."""

    def __init__(self, spare: int) -> None:
        self._spare = spare

    def __enter__(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, self._limits[1]))
        self._held: list[int] = []
        try:
            while True:
                self._held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            for _ in range(self._spare):
                os.close(self._held.pop())

    def __exit__(self, *_: object) -> None:
        for descriptor in self._held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
