"""The catalog: what may be imported, how often, and what a full disk or a kill in the middle leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from dsec.bus.errors import Conflict, DiskFull, MissingTool, NoSuchImage, SpecError, UnsafeArchive
from dsec.bus.spec import Image
from dsec.plugins.images import ErofsImages, erofs
from tests.images.conftest import IMAGE, mounts

pytestmark = pytest.mark.node
SANDBOX = "s-n-test0001"


def leftovers(home: Path) -> list[Path]:
    return [*(home / "layers").glob(".*"), *(home / "names").glob(".*")]


async def test_the_catalog_lists_layers_by_name_and_outlives_the_process(
    images: ErofsImages, home: Path
) -> None:
    async with ErofsImages(home) as other:
        found = await other.layers()
    assert [(layer.name, layer.kind) for layer in found] == [("base", "base"), ("task", "workspace")]
    for layer in found:
        file = home / "layers" / f"{layer.digest}.erofs"
        assert (erofs.sha256(file), file.stat().st_size) == (layer.digest, layer.size)


async def test_the_same_tree_may_be_imported_again_whenever_it_was_checked_out(
    images: ErofsImages, trees: tuple[Path, Path], home: Path
) -> None:
    os.utime(trees[1] / "work" / "main.py", (1, 1))
    first = next(layer for layer in await images.layers() if layer.name == "task")
    assert await images.import_tree("task", trees[1], "workspace") == first
    assert leftovers(home) == []


async def test_another_tree_of_that_name_is_a_conflict(
    images: ErofsImages, trees: tuple[Path, Path], home: Path
) -> None:
    (trees[1] / "work" / "main.py").write_text("print(2)\n")
    with pytest.raises(Conflict, match="task"):
        await images.import_tree("task", trees[1], "workspace")
    assert len(list((home / "layers").iterdir())) == 2


async def test_imports_of_one_name_at_once_agree(images: ErofsImages, trees: tuple[Path, Path]) -> None:
    made = await asyncio.gather(*(images.import_tree("again", trees[1], "toolkit") for _ in range(4)))
    assert len({layer.digest for layer in made}) == 1


async def test_times_are_kept_on_request(images: ErofsImages, trees: tuple[Path, Path]) -> None:
    os.utime(trees[1] / "work" / "main.py", ns=(1, 1_500_000_000_000_000_007))
    await images.import_tree("timed", trees[1], "workspace", keep_times=True)
    rootfs = await images.compose(SANDBOX, Image(base="base", workspace="timed"))
    assert (rootfs.path / "work" / "main.py").stat().st_mtime_ns == 1_500_000_000_000_000_007
    assert (rootfs.path / "d" / "old").stat().st_mtime == erofs.FIXED_TIME


async def test_a_removed_layer_goes_with_its_last_sandbox(
    images: ErofsImages, home: Path, trees: tuple[Path, Path]
) -> None:
    await images.compose(SANDBOX, IMAGE)
    await images.remove("task")
    await images.remove("task")
    with pytest.raises(NoSuchImage):
        await images.compose("s-n-test0002", IMAGE)
    assert len(list((home / "layers").iterdir())) == 2
    await images.release(SANDBOX)
    await images.close()
    assert len(list((home / "layers").iterdir())) == 1
    async with ErofsImages(home) as later:
        await later.import_tree("task", trees[1], "workspace")


async def test_an_erofs_file_is_checked_and_copied(images: ErofsImages, home: Path, tmp_path: Path) -> None:
    layer = (await images.layers())[1]
    good = home / "layers" / f"{layer.digest}.erofs"
    assert (await images.import_file("copy", good, "toolkit")).digest == layer.digest
    bad = tmp_path / "bad.erofs"
    for content in (b"", b"no image", bytes(8192), good.read_bytes()[:2048]):
        bad.write_bytes(content)
        with pytest.raises(SpecError, match=r"bad\.erofs|image"):
            await images.import_file("bad", bad, "toolkit")
    with pytest.raises(SpecError):
        await images.import_file("bad", tmp_path / "nowhere", "toolkit")
    assert leftovers(home) == []


async def test_damage_inside_an_erofs_file_is_found(images: ErofsImages, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "text").write_text("".join(map(str, range(100_000))))
    image = tmp_path / "image"
    await erofs.build(tmp_path / "tree", image)
    content = bytearray(image.read_bytes())
    content[4096 : len(content)] = bytes(len(content) - 4096)
    image.write_bytes(content)
    with pytest.raises(SpecError, match="damaged"):
        await images.import_file("bad", image, "toolkit")


@pytest.mark.parametrize("name", ["../up", "Up", "", ".hidden", "a/b", "x" * 129])
async def test_a_name_that_is_no_layer_name_is_refused(
    images: ErofsImages, trees: tuple[Path, Path], name: str
) -> None:
    with pytest.raises(SpecError):
        await images.import_tree(name, trees[0], "toolkit")


async def test_a_tar_is_imported_with_owners_modes_and_links(images: ErofsImages, tmp_path: Path) -> None:
    tar = _tar(
        tmp_path / "layer.tar.gz",
        _entry("opt/tool", b"#!/bin/sh\n", mode=0o4755, uid=1234, gid=77),
        _entry("opt/same", kind=tarfile.LNKTYPE, link="opt/tool"),
        _entry("opt/link", kind=tarfile.SYMTYPE, link="../etc/passwd"),
    )
    first = await images.import_tar("tool", tar, "toolkit")
    assert await images.import_tar("tool", tar, "toolkit") == first
    rootfs = await images.compose(SANDBOX, Image(base="base", toolkits=("tool",)))
    found = (rootfs.path / "opt" / "tool").stat()
    assert (found.st_uid, found.st_gid) == (rootfs.uid_base + 1234, rootfs.uid_base + 77)
    assert (found.st_mode & 0o7777, found.st_nlink) == (0o4755, 2)
    assert (rootfs.path / "opt" / "link").readlink() == Path("../etc/passwd")


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up"])
async def test_a_tar_that_leaves_its_directory_is_refused(
    images: ErofsImages, tmp_path: Path, home: Path, name: str
) -> None:
    for entry in (_entry(name, b"x"), _entry("link", kind=tarfile.LNKTYPE, link=name)):
        with pytest.raises(UnsafeArchive):
            await images.import_tar("bad", _tar(tmp_path / "bad.tar", entry), "toolkit")
    assert leftovers(home) == []


async def test_a_tar_cannot_write_through_its_own_symlink(
    images: ErofsImages, tmp_path: Path, home: Path
) -> None:
    (tmp_path / "victim").mkdir()
    tar = _tar(
        tmp_path / "bad.tar",
        _entry("way", kind=tarfile.SYMTYPE, link=str(tmp_path / "victim")),
        _entry("way/file", b"x"),
    )
    with pytest.raises(SpecError):
        await images.import_tar("bad", tar, "toolkit")
    assert list((tmp_path / "victim").iterdir()) == []
    assert leftovers(home) == []


async def test_devices_are_for_base_layers_only(images: ErofsImages, tmp_path: Path) -> None:
    tar = _tar(tmp_path / "dev.tar", _entry("null", kind=tarfile.CHRTYPE))
    with pytest.raises(UnsafeArchive):
        await images.import_tar("dev", tar, "toolkit")
    await images.import_tar("dev", tar, "base")


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.xz"])
async def test_a_cut_off_tar_is_refused(images: ErofsImages, tmp_path: Path, home: Path, suffix: str) -> None:
    tar = _tar(tmp_path / f"cut.{suffix}", _entry("big", os.urandom(200_000)))
    os.truncate(tar, tar.stat().st_size // 2)
    with pytest.raises(SpecError):
        await images.import_tar("cut", tar, "toolkit")
    assert leftovers(home) == []


async def test_a_full_disk_is_told_and_nothing_is_left(
    small_disk: Callable[..., Path], tmp_path: Path
) -> None:
    home = small_disk("8M")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "big").write_bytes(os.urandom(20 << 20))
    async with ErofsImages(home) as images:
        tar = _tar(tmp_path / "big.tar", _entry("big", bytes(20 << 20)))
        with pytest.raises(DiskFull):
            await images.import_tree("big", tree, "toolkit")
        with pytest.raises(DiskFull):
            await images.import_tar("big", tar, "toolkit")
        with pytest.raises(DiskFull):
            await images.import_file("big", tar, "toolkit")
        assert leftovers(home) == []
        assert await images.layers() == []
        (tree / "big").write_bytes(b"small")
        await images.import_tree("big", tree, "toolkit")


_IMPORT = """
import asyncio, sys
from pathlib import Path
from dsec.plugins.images import ErofsImages
asyncio.run(ErofsImages(Path(sys.argv[1])).import_tree("torn", Path(sys.argv[2]), "toolkit"))
"""


async def test_an_import_that_was_killed_is_never_seen_and_swept(home: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "big").write_bytes(os.urandom(32 << 20))
    importer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _IMPORT, home, tree, start_new_session=True
    )
    await _begun(home)
    async with ErofsImages(home) as other:  # while it runs, its workshop is its own
        assert len(leftovers(home)) == 1
        os.killpg(importer.pid, signal.SIGKILL)
        await importer.wait()
        assert await other.layers() == []
    await _settled(home)
    async with ErofsImages(home) as later:
        assert leftovers(home) == []
        assert await later.layers() == []
        (tree / "big").write_bytes(b"small")
        await later.import_tree("torn", tree, "toolkit")


async def _begun(home: Path) -> Path:
    """The image file, as soon as mkfs.erofs has made it."""
    for _ in range(2000):
        if found := list((home / "layers").glob(".import-*/image")):
            return found[0]
        await asyncio.sleep(0.005)
    pytest.fail("the import does not begin")


async def _settled(home: Path) -> None:
    """mkfs.erofs leads a group of its own; it ends when it has written, and holds no lock."""
    image = next((home / "layers").glob(".import-*/image"))
    for _ in range(500):
        if not _writers(image):
            return
        await asyncio.sleep(0.02)
    pytest.fail("mkfs.erofs goes on")


def _writers(image: Path) -> list[Path]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(image) in entry.read_bytes().split(b"\0"):
                found.append(entry)
        except OSError:
            continue
    return found


async def test_a_cancelled_import_leaves_no_process_and_no_file(
    images: ErofsImages, home: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "big").write_bytes(os.urandom(32 << 20))
    task = asyncio.create_task(images.import_tree("big", tree, "toolkit"))
    image = await _begun(home)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert leftovers(home) == []
    assert _writers(image) == []


async def test_a_process_that_only_imports_leaves_the_mounts_alone(
    images: ErofsImages, home: Path, trees: tuple[Path, Path]
) -> None:
    await images.compose(SANDBOX, IMAGE)
    await images.release(SANDBOX)
    before = mounts(home)
    async with ErofsImages(home) as other:
        await other.import_tree("more", trees[1], "toolkit")
    assert mounts(home) == before
    await images.compose(SANDBOX, Image(base="base", toolkits=("more",)))


async def test_a_missing_program_is_told_with_the_package(
    images: ErofsImages, trees: tuple[Path, Path], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingTool, match="apt-get install erofs-utils"):
        await images.check()
    with pytest.raises(MissingTool, match="apt-get install erofs-utils"):
        await images.import_tree("other", trees[1], "toolkit")
    assert leftovers(home) == []


async def test_this_machine_passes_the_check(images: ErofsImages) -> None:
    await images.check()


def _entry(
    name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = "", **fields: int
) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, link, len(data)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry, data


def _tar(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    suffix = path.suffix.removeprefix(".").replace("tar", "")
    with tarfile.open(path, f"w:{suffix}") as tar:  # type: ignore[call-overload]  # the mode is computed
        for entry, data in entries:
            tar.addfile(entry, BytesIO(data))
    return path
