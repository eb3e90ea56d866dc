"""Archives of layers: looked through first, then unpacked by GNU tar, which keeps owners and attributes."""

from __future__ import annotations

import lzma
import os
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from dsec.bus import threads
from dsec.bus.errors import InfraError, SpecError, UnsafeArchive
from dsec.plugins.images import erofs


async def unpack(archive: Path, directory: Path, *, devices: bool) -> None:
    """Unpack into the new `directory`; device nodes only with `devices` (a base layer's /dev).

    Raises UnsafeArchive, SpecError when it is no whole archive, MissingTool, DiskFull.
    """
    implied = await threads.finish(lambda: _check(archive, devices=devices))
    directory.mkdir()
    directory.chmod(0o755)
    try:
        await erofs.run(
            "tar",
            "--extract",
            f"--file={archive}",
            f"--directory={directory}",
            "--numeric-owner",
            "--same-owner",
            "--same-permissions",
            "--delay-directory-restore",
            "--xattrs",
            "--xattrs-include=*",
            "--xattrs-exclude=trusted.*",  # overlayfs obeys these: they are not for an archive to set
            advice="apt-get install tar",
        )
    except InfraError as error:
        if type(error) is not InfraError:
            raise
        raise SpecError(f"{archive.name} cannot be unpacked: {error.message}") from error
    for path in implied:  # tar made them now, and equal archives shall make equal layers
        os.utime(directory / path, (erofs.FIXED_TIME, erofs.FIXED_TIME), follow_symlinks=False)


def _check(archive: Path, *, devices: bool) -> set[PurePosixPath]:
    """Look at every member; the directories that members lie in without being members themselves."""
    parents, directories = {PurePosixPath()}, set()
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                _check_member(member, devices=devices)
                path = PurePosixPath(member.name)
                parents.update(path.parents)
                if member.isdir():
                    directories.add(path)
            _check_end(tar, archive.name)
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise SpecError(f"{archive}: {error.strerror}") from error
        raise SpecError(f"{archive.name} is no whole tar archive: {error}") from error
    return parents - directories


def _check_end(tar: tarfile.TarFile, name: str) -> None:
    """tarfile and GNU tar take an archive that is cut off between two members for a whole one."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise SpecError(f"{name} is cut off: it has no end-of-archive mark")


def _check_member(member: tarfile.TarInfo, *, devices: bool) -> None:
    names = (member.name, member.linkname) if member.islnk() else (member.name,)
    if any(name.startswith("/") or ".." in PurePosixPath(name).parts for name in names):
        raise UnsafeArchive(f"{member.name!r} leaves the archive's directory")
    if (member.ischr() or member.isblk()) and not devices:
        raise UnsafeArchive(f"{member.name!r} is a device: only a base layer may hold one")
