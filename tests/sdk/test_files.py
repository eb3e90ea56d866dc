"""Files and trees both ways, against the protocol peer; nothing is written before an archive has been
checked.
"""

import io
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.bus.errors import NoSuchFile, SpecError, UnsafeArchive
from dsec.sdk import Sandbox
from dsec.sdk.files import CHUNK
from tests.sdk.support import Peer


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7])
async def test_a_file_comes_back_as_it_went(sandbox: Sandbox, size: int) -> None:
    data = os.urandom(size)
    await sandbox.files.write("/dir/data", data, mode=0o600)
    assert await sandbox.files.read("/dir/data") == data
    assert (
        b"".join([chunk async for chunk in sandbox.files.read_stream("/dir/data", offset=size // 2)])
        == data[size // 2 :]
    )
    about = await sandbox.files.stat("/dir/data")
    assert (about.size, about.mode & 0o777) == (size, 0o600)


async def test_streams_and_local_files_are_written_in_full_chunks(
    peer: Peer, sandbox: Sandbox, tmp_path: Path
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(1000):
            yield bytes([number % 256]) * 999

    whole = b"".join([piece async for piece in pieces()])
    await sandbox.files.write("/streamed", pieces())
    assert (peer.root / "streamed").read_bytes() == whole
    assert peer.done["write"] == -(-len(whole) // CHUNK)
    (tmp_path / "local").write_bytes(whole)
    await sandbox.files.write("/copied", tmp_path / "local")
    assert (peer.root / "copied").read_bytes() == whole


async def test_writing_again_leaves_nothing_of_the_old_content(sandbox: Sandbox) -> None:
    await sandbox.files.write("/f", "long content")
    await sandbox.files.write("/f", "short")
    assert await sandbox.files.read("/f") == b"short"
    await sandbox.files.remove("/f")
    with pytest.raises(NoSuchFile):
        await sandbox.files.read("/f")


async def test_a_long_directory_is_listed_whole(peer: Peer, sandbox: Sandbox) -> None:
    (peer.root / "many").mkdir()
    for number in range(250):
        (peer.root / "many" / f"f{number}").touch()
    assert len({entry.path for entry in await sandbox.files.list("/many")}) == 250


def make_tree(top: Path) -> None:
    (top / "sub/deep").mkdir(parents=True)
    (top / "sub/data").write_bytes(os.urandom(CHUNK * 2 + 1))
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "run.sh").chmod(0o755)
    (top / "link").symlink_to("sub/data")
    for number in range(50):
        (top / f"sub/deep/{number}").write_text(str(number))


def same(left: Path, right: Path) -> bool:
    names = [sorted(path.relative_to(top).as_posix() for path in top.rglob("*")) for top in (left, right)]
    files = [name for name in names[0] if (left / name).is_file()]
    return names[0] == names[1] and all(
        (left / name).read_bytes() == (right / name).read_bytes() for name in files
    )


async def test_a_tree_goes_up_and_comes_down(peer: Peer, sandbox: Sandbox, tmp_path: Path) -> None:
    make_tree(tmp_path / "source")
    await sandbox.upload(tmp_path / "source", "/up")
    assert same(tmp_path / "source", peer.root / "up")
    await sandbox.download("/up", tmp_path / "back")
    assert same(tmp_path / "source", tmp_path / "back")
    assert (tmp_path / "back/link").readlink() == Path("sub/data")
    assert (tmp_path / "back/run.sh").stat().st_mode & 0o777 == 0o755
    await sandbox.download("/up/run.sh", tmp_path / "one")
    assert (tmp_path / "one").read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize("mode", ["w", "w:gz"])
async def test_a_tar_goes_up_and_comes_down(peer: Peer, sandbox: Sandbox, tmp_path: Path, mode: str) -> None:
    make_tree(tmp_path / "source")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]  # a parameter, both forms exist
        tar.add(tmp_path / "source", ".")
    buffer.seek(0)
    await sandbox.upload_tar(buffer, "/up")
    assert same(tmp_path / "source", peer.root / "up")
    back = await sandbox.download_tar("/up")
    with tarfile.open(fileobj=io.BytesIO(back)) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # which Python 3.11.2 lacks
        tar.extractall(tmp_path / "back")
    assert same(tmp_path / "source", tmp_path / "back")


async def test_an_unsafe_archive_is_refused_before_anything_is_written(peer: Peer, sandbox: Sandbox) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("good"))
        tar.addfile(tarfile.TarInfo("../evil"))
    buffer.seek(0)
    with pytest.raises(UnsafeArchive) as caught:
        await sandbox.upload_tar(buffer, "/up")
    assert caught.value.field == "../evil"
    assert [*peer.root.iterdir()] == []
    with pytest.raises(SpecError):
        await sandbox.upload_tar(io.BytesIO(b"no tar" * 1000), "/up")


async def test_a_hostile_sandbox_cannot_write_outside_of_a_download(
    peer: Peer, sandbox: Sandbox, tmp_path: Path
) -> None:
    (peer.root / "tree").mkdir()
    (peer.root / "tree/out").symlink_to("/etc")
    with pytest.raises(UnsafeArchive):
        await sandbox.download("/tree", tmp_path / "back")
    (peer.root / "tree/out").unlink()
    os.mkfifo(peer.root / "tree/pipe")
    with pytest.raises(UnsafeArchive):
        await sandbox.download("/tree", tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]


async def test_a_download_replaces_no_directory(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.files.write("/f", b"x")
    with pytest.raises(SpecError) as caught:
        await sandbox.download("/f", tmp_path)
    assert caught.value.field == "local"


async def test_a_local_path_that_is_not_there_is_typed(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile):
        await sandbox.upload(tmp_path / "nothing", "/up")
