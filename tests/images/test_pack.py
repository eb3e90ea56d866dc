"""Packed layers: deletions survive, equal content has an equal digest, grading gets nothing it must not."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.driver import Rootfs
from dsec.bus.errors import Conflict, DiskFull, LimitError, NoSuchSandbox, SpecError
from dsec.bus.spec import Image
from dsec.plugins.images import ErofsImages, entries, pack
from tests.images.conftest import Inside

SANDBOX, RESTORED = "s-n-test0001", "s-n-test0002"
node = pytest.mark.node


async def restored(images: ErofsImages, name: str) -> Path:
    """The packed layer on top of what the sandbox was made of."""
    return (await images.compose(RESTORED, Image(base="base", workspace="task", packs=(name,)))).path


def names(directory: Path) -> set[bytes]:
    return {os.fsencode(path.name) for path in directory.iterdir()}


async def above_nothing(images: ErofsImages, name: str, empty: Path) -> Path:
    """The packed layer alone."""
    empty.mkdir()
    await images.import_tree("empty", empty, "base")
    return (await images.compose(RESTORED, Image(base="empty", packs=(name,)))).path


@node
async def test_a_directory_made_anew_holds_only_the_new(
    images: ErofsImages, rootfs: Rootfs, inside: Inside
) -> None:
    def work() -> None:
        (rootfs.path / "d" / "old").unlink()
        (rootfs.path / "d").rmdir()
        (rootfs.path / "d").mkdir()
        (rootfs.path / "d" / "new").touch()

    await inside(rootfs, work)
    layer = await images.pack(SANDBOX, "packed", None)
    assert layer.kind == "pack"
    assert layer in await images.layers()
    assert names(await restored(images, "packed") / "d") == {b"new"}


@node
async def test_deletions_owners_modes_links_and_times_survive(
    images: ErofsImages, rootfs: Rootfs, inside: Inside
) -> None:
    top = rootfs.path

    def work() -> None:
        (top / "d" / "old").unlink()
        (top / "work" / "a").write_text("a")
        os.utime(top / "work" / "a", ns=(1, 1_500_000_000_123_456_789))
        os.link(top / "work" / "a", top / "work" / "b")
        (top / "work" / "link").symlink_to("a")
        os.mkfifo(top / "work" / "pipe", 0o640)
        (top / "work" / "a").chmod(0o4755)
        os.setxattr(top / "work" / "a", "user.note", b"x")

    await inside(rootfs, work)
    await inside(rootfs, lambda: (top / "tmp" / "theirs").write_text("x"), uid=1000)
    await images.pack(SANDBOX, "packed", None)
    path = await restored(images, "packed")
    assert names(path / "d") == set()
    found = (path / "work" / "a").stat()
    assert (found.st_mode & 0o7777, found.st_nlink, found.st_mtime_ns) == (
        0o4755,
        2,
        1_500_000_000_123_456_789,
    )
    assert os.getxattr(path / "work" / "a", "user.note") == b"x"
    assert (path / "work" / "link").readlink() == Path("a")
    assert stat.S_ISFIFO((path / "work" / "pipe").stat().st_mode)
    assert (path / "tmp" / "theirs").stat().st_uid - (path / "work" / "a").stat().st_uid == 1000
    assert (path / "work" / "main.py").read_text() == "print(1)\n"


@node
async def test_packing_twice_gives_the_same_digest(
    images: ErofsImages, rootfs: Rootfs, inside: Inside
) -> None:
    await inside(rootfs, lambda: (rootfs.path / "work" / "main.py").write_text("print(2)\n"))
    await inside(rootfs, (rootfs.path / "d" / "old").unlink)
    first = await images.pack(SANDBOX, "one", None)
    again = await images.pack(SANDBOX, "one", None)
    second = await images.pack(SANDBOX, "two", None)
    assert first == again
    assert first.digest == second.digest


@node
async def test_equal_work_in_two_sandboxes_gives_the_same_digest(images: ErofsImages, inside: Inside) -> None:
    layers = []
    for sandbox in (SANDBOX, RESTORED):
        rootfs = await images.compose(sandbox, Image(base="base", workspace="task"))
        await inside(rootfs, lambda: _edit(rootfs.path))  # noqa: B023  (runs at once)
        layers.append(await images.pack(sandbox, sandbox, ("/work",)))
    assert layers[0].digest == layers[1].digest


def _edit(top: Path) -> None:
    (top / "work" / "main.py").write_text("print(2)\n")
    (top / "work" / "new").mkdir()
    for path in (top / "work" / "main.py", top / "work" / "new", top / "work"):
        os.utime(path, (1e9, 1e9))


@node
async def test_a_name_with_other_content_is_a_conflict(
    images: ErofsImages, rootfs: Rootfs, inside: Inside
) -> None:
    await images.pack(SANDBOX, "packed", None)
    await inside(rootfs, (rootfs.path / "new").touch)
    with pytest.raises(Conflict):
        await images.pack(SANDBOX, "packed", None)


@node
async def test_with_paths_nothing_else_and_nothing_dangerous_is_kept(
    images: ErofsImages, rootfs: Rootfs, inside: Inside, tmp_path: Path
) -> None:
    top = rootfs.path

    def work() -> None:
        (top / "work" / "sub").mkdir()
        (top / "work" / "sub" / "kept").write_text("kept")
        (top / "work" / "sub" / "kept").chmod(0o6755)
        (top / "work" / "sub").chmod(0o2777)
        (top / "work" / "workalike").write_text("x")
        (top / "work" / "absolute").symlink_to("/etc/passwd")
        (top / "work" / "relative").symlink_to("sub")
        os.mkfifo(top / "work" / "pipe")
        os.mknod(top / "work" / "socket", stat.S_IFSOCK | 0o644)  # bind(2) takes no path as long as this
        (top / "etc" / "shadow").write_text("outside")
        (top / "workalike").write_text("outside")

    await inside(rootfs, work)
    await images.pack(SANDBOX, "graded", ("/work/sub", "/work/"))
    path = await above_nothing(images, "graded", tmp_path / "empty")
    found = sorted(str(one.relative_to(path)) for one in path.rglob("*"))
    assert found == ["work", "work/sub", "work/sub/kept", "work/workalike"]
    assert (path / "work" / "sub" / "kept").stat().st_mode & 0o7777 == 0o755
    assert (path / "work" / "sub").stat().st_mode & 0o7777 == 0o777


@node
async def test_a_lower_file_replaced_by_a_symlink_is_gone_and_does_not_come_back(
    images: ErofsImages, rootfs: Rootfs, inside: Inside
) -> None:
    def work() -> None:
        (rootfs.path / "work" / "main.py").unlink()
        (rootfs.path / "work" / "main.py").symlink_to("/etc/passwd")

    await inside(rootfs, work)
    await images.pack(SANDBOX, "graded", ("/work",))
    assert names(await restored(images, "graded") / "work") == set()


@node
@pytest.mark.parametrize("trick", ["symlink", "file", "deleted", "anew"])
async def test_a_parent_that_was_replaced_is_not_followed(
    images: ErofsImages, rootfs: Rootfs, inside: Inside, trick: str
) -> None:
    def work() -> None:
        (rootfs.path / "etc" / "main.py").write_text("stolen")
        (rootfs.path / "work" / "main.py").unlink()
        (rootfs.path / "work").rmdir()
        if trick == "symlink":
            (rootfs.path / "work").symlink_to("etc")
        elif trick == "file":
            (rootfs.path / "work").write_text("x")
        elif trick == "anew":
            (rootfs.path / "work").mkdir()
            (rootfs.path / "work" / "other").touch()

    await inside(rootfs, work)
    await images.pack(SANDBOX, "graded", ("/work/main.py",))
    assert names(await restored(images, "graded") / "work") == set()


@node
async def test_a_parent_keeps_the_mode_it_has_below_and_its_other_entries(
    images: ErofsImages, inside: Inside, trees: tuple[Path, Path]
) -> None:
    (trees[1] / "work" / "src").mkdir()
    (trees[1] / "work" / "src" / "old").touch()
    await images.import_tree("deep", trees[1], "workspace")
    rootfs = await images.compose(SANDBOX, Image(base="base", workspace="deep"))

    def work() -> None:
        for name in ("src/old", "main.py"):
            (rootfs.path / "work" / name).unlink()
        (rootfs.path / "work" / "src").rmdir()
        (rootfs.path / "work").rmdir()
        (rootfs.path / "work").mkdir(mode=0o777)
        (rootfs.path / "work" / "src").mkdir()
        (rootfs.path / "work" / "src" / "new").touch()

    await inside(rootfs, work)
    await images.pack(SANDBOX, "graded", ("/work/src",))
    path = (await images.compose(RESTORED, Image(base="base", workspace="deep", packs=("graded",)))).path
    assert names(path / "work" / "src") == {b"new"}
    assert (path / "work" / "main.py").exists()
    assert (path / "work").stat().st_mode & 0o777 == 0o755


@node
async def test_deleting_an_allowed_path_is_kept(images: ErofsImages, rootfs: Rootfs, inside: Inside) -> None:
    await inside(rootfs, (rootfs.path / "d" / "old").unlink)
    await images.pack(SANDBOX, "graded", ("/d/old", "/work/never"))
    path = await restored(images, "graded")
    assert names(path / "d") == set()
    assert (path / "work" / "main.py").exists()


@node
async def test_names_that_are_no_text_are_packed(images: ErofsImages, rootfs: Rootfs, inside: Inside) -> None:
    odd = {b"\xff\x96", b"new\nline", b" ", b"-rf", b"a" * 254}

    def work() -> None:
        for name in odd:
            os.close(os.open(os.fsencode(rootfs.path / "d") + b"/" + name, os.O_CREAT | os.O_WRONLY))

    await inside(rootfs, work)
    for name, paths in (("all", None), ("some", ("/d",))):
        await images.pack(SANDBOX, name, paths)
        path = await restored(images, name)
        assert names(path / "d") == odd | {b"old"}
        await images.release(RESTORED)


@node
async def test_a_sparse_file_larger_than_the_disk_is_refused_at_once(
    images: ErofsImages, rootfs: Rootfs, inside: Inside, home: Path
) -> None:
    await inside(rootfs, lambda: _sparse(rootfs.path / "huge", 1 << 43))
    async with asyncio.timeout(5):
        with pytest.raises(DiskFull):
            await images.pack(SANDBOX, "packed", None)
    assert not list((home / "layers").glob(".*"))


def _sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


@node
async def test_holes_and_data_of_a_sparse_file_are_right(
    images: ErofsImages, rootfs: Rootfs, inside: Inside
) -> None:
    def work() -> None:
        with (rootfs.path / "sparse").open("wb") as file:
            file.seek(1 << 20)
            file.write(b"middle")
            file.truncate(3 << 20)

    await inside(rootfs, work)
    await images.pack(SANDBOX, "packed", None)
    expected = bytes(1 << 20) + b"middle" + bytes((2 << 20) - 6)
    assert (await restored(images, "packed") / "sparse").read_bytes() == expected


@node
@pytest.mark.parametrize("what", ["name", "path"])
async def test_a_name_or_path_too_long_for_an_image_is_told(
    images: ErofsImages, rootfs: Rootfs, inside: Inside, home: Path, what: str
) -> None:
    def work() -> None:
        if what == "name":
            (rootfs.path / ("x" * 255)).touch()
            return
        place = os.open(rootfs.path / "work", os.O_RDONLY)
        for _ in range(20):
            os.mkdir("x" * 250, dir_fd=place)
            deeper = os.open("x" * 250, os.O_RDONLY, dir_fd=place)
            os.close(place)
            place = deeper
        os.close(place)

    await inside(rootfs, work)
    with pytest.raises(LimitError):
        await images.pack(SANDBOX, "packed", None)
    assert not list((home / "layers").glob(".*"))


@node
@pytest.mark.parametrize("path", ["work", "/work/../etc", "", "/a\0b"])
async def test_a_path_that_is_not_absolute_or_goes_up_is_refused(
    images: ErofsImages, rootfs: Rootfs, path: str
) -> None:
    with pytest.raises(SpecError):
        await images.pack(SANDBOX, "graded", (path,))


@node
async def test_packing_what_does_not_exist_is_told(images: ErofsImages) -> None:
    with pytest.raises(NoSuchSandbox):
        await images.pack(SANDBOX, "packed", None)


_parts = st.lists(st.sampled_from(["a", "b", "ab", "a.b", "."]), max_size=4)


@given(st.lists(_parts.map(lambda parts: "/" + "/".join(parts)), max_size=6))
def test_outermost_paths_cover_all_and_no_one_covers_another(paths: list[str]) -> None:
    kept = [Path("/", os.fsdecode(path)) for path in pack.outermost(paths)]
    for path in map(Path, paths):
        assert sum(path.is_relative_to(one) for one in kept) == 1
    for one in kept:
        assert sum(one.is_relative_to(other) for other in kept) == 1


@node
async def test_a_layer_of_too_many_files_is_refused(
    images: ErofsImages, rootfs: Rootfs, inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        for number in range(20):
            (rootfs.path / f"file-{number}").touch()

    monkeypatch.setattr(entries, "_MOST", 20)
    await inside(rootfs, work)
    with pytest.raises(LimitError):
        await images.pack(SANDBOX, "packed", None)
    assert "packed" not in {layer.name for layer in await images.layers()}
