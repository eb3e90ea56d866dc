"""Files and directories, both ways, with what a hostile archive or path may not do."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from dsec.bus.errors import NoSuchFile, UnsafeArchive
from dsec.sdk import Sandbox


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    """A tar with exactly these members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    buffer.seek(0)
    return buffer


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


class FileSuite:
    @pytest.mark.parametrize("size", [0, 1, 60 * 1024 + 1, 5_000_000])
    async def test_a_file_comes_back_as_it_went(self, sandbox: Sandbox, size: int) -> None:
        data = os.urandom(size)
        await sandbox.files.write("/tmp/dir/data", data)
        assert await sandbox.files.read("/tmp/dir/data") == data
        assert (await sandbox.files.stat("/tmp/dir/data")).size == size

    async def test_writing_again_leaves_nothing_of_the_old_content(self, sandbox: Sandbox) -> None:
        await sandbox.files.write("/tmp/f", b"long content")
        await sandbox.files.write("/tmp/f", b"short")
        assert await sandbox.files.read("/tmp/f") == b"short"

    async def test_what_a_command_wrote_can_be_read_and_the_other_way(self, sandbox: Sandbox) -> None:
        await sandbox.run("printf 'from inside' > /tmp/a")
        assert await sandbox.files.read("/tmp/a") == b"from inside"
        await sandbox.files.write("/tmp/b", b"from outside")
        assert (await sandbox.run(["cat", "/tmp/b"])).stdout == "from outside"

    async def test_a_missing_path_or_a_wrong_kind_is_typed(self, sandbox: Sandbox) -> None:
        await sandbox.run("mkfifo /tmp/pipe")
        for path in ("/no/such", "/tmp", "/tmp/pipe", "/dev/zero"):
            with pytest.raises(NoSuchFile):
                await sandbox.files.read(path)

    async def test_a_directory_is_listed_whole(self, sandbox: Sandbox) -> None:
        await sandbox.run(
            "mkdir /tmp/many; cd /tmp/many; for i in $(seq 1500); do : > f$i; done; mkdir d; ln -s x l"
        )
        names = {os.path.basename(entry.path) for entry in await sandbox.files.list("/tmp/many")}  # noqa: PTH119
        assert names == {f"f{i}" for i in range(1, 1501)} | {"d", "l"}

    async def test_remove_takes_a_tree_and_follows_no_link(self, sandbox: Sandbox) -> None:
        await sandbox.run("mkdir -p /tmp/tree/sub /tmp/kept; touch /tmp/tree/sub/f /tmp/kept/f")
        await sandbox.run(["ln", "-s", "/tmp/kept", "/tmp/tree/link"])
        await sandbox.files.remove("/tmp/tree", recursive=True)
        assert (await sandbox.run("ls -d /tmp/tree; ls /tmp/kept")).stdout == "f\n"

    async def test_a_directory_goes_up_and_comes_down(self, sandbox: Sandbox, tmp_path: Path) -> None:
        source = tmp_path / "source"
        (source / "sub").mkdir(parents=True)
        (source / "sub/data").write_bytes(os.urandom(100_000))
        (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (source / "run.sh").chmod(0o755)
        (source / "link").symlink_to("sub/data")
        await sandbox.upload(source, "/tmp/up")
        assert (await sandbox.run(["/tmp/up/run.sh"])).stdout == "ran\n"
        await sandbox.download("/tmp/up", tmp_path / "back")
        assert (tmp_path / "back/sub/data").read_bytes() == (source / "sub/data").read_bytes()
        assert (tmp_path / "back/link").readlink() == Path("sub/data")
        assert (tmp_path / "back/run.sh").stat().st_mode & 0o777 == 0o755

    @pytest.mark.parametrize(
        "bad",
        [
            member("../escape"),
            member("/absolute"),
            member("a/../../escape"),
            member("hard", tarfile.LNKTYPE, "/etc/passwd"),
            member("device", tarfile.CHRTYPE),
            member("block", tarfile.BLKTYPE),
            member("pipe", tarfile.FIFOTYPE),
        ],
        ids=lambda info: info.name,
    )
    async def test_an_unsafe_archive_is_refused_before_anything_is_written(
        self, sandbox: Sandbox, bad: tarfile.TarInfo
    ) -> None:
        with pytest.raises(UnsafeArchive):
            await sandbox.upload_tar(archive((member("good"), b"x"), (bad, b"")), "/tmp/tar")
        assert (await sandbox.run("ls /tmp/tar /escape /tmp/escape /absolute 2>/dev/null")).stdout == ""

    async def test_an_archive_cannot_write_through_its_own_link(self, sandbox: Sandbox) -> None:
        link = member("out", tarfile.SYMTYPE, "/etc")
        with pytest.raises(UnsafeArchive):
            await sandbox.upload_tar(archive((link, b""), (member("out/evil"), b"x")), "/tmp/tar2")
        assert (await sandbox.run("ls /etc/evil 2>/dev/null")).stdout == ""
