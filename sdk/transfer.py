"""Directories and archives between this machine and a sandbox; `archive` decides what may pass.

What comes out of a sandbox is hostile: its names are checked like an archive's, and a directory appears under
its name only when all of it has come.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Final

from dsec.bus.errors import NoSuchFile, SpecError
from dsec.sdk import archive
from dsec.sdk.archive import Member
from dsec.sdk.concurrency import each, stream_of
from dsec.sdk.files import CHUNK, Files

AT_ONCE: Final = 16
"""Files under way at once; small ones are many, and each waits for one answer."""
SPOOL: Final = 8 * 1024 * 1024


async def upload(files: Files, local: Path, remote: str) -> None:
    """A local file or directory to `remote`."""
    if not local.is_dir():
        if not local.is_file():
            raise NoSuchFile(f"{local} is neither a file nor a directory on this machine", field="local")
        await files.write(remote, local, mode=local.stat().st_mode & 0o777)
        return
    members = archive.check(await asyncio.to_thread(lambda: list(_local_members(local))))
    await _make_directories(files, members, remote)

    async def one(member: Member) -> None:
        if member.type == "symlink":
            await files.symlink(_below(remote, member), member.target)
        elif member.type == "file":
            path = local / member.name
            data = path if member.size > CHUNK else await asyncio.to_thread(path.read_bytes)
            await files.write(_below(remote, member), data, mode=member.mode)

    await each(stream_of(members), one, AT_ONCE)


async def upload_tar(files: Files, source: IO[bytes], remote: str) -> None:
    """The tar `source` into directory `remote`, whole or refused."""
    with tempfile.SpooledTemporaryFile(SPOOL) as spool:
        await asyncio.to_thread(shutil.copyfileobj, source, spool)
        spool.seek(0)
        try:
            with tarfile.open(fileobj=spool) as tar:
                infos = await asyncio.to_thread(tar.getmembers)
                members = archive.check([archive.of_tar(info) for info in infos])
                await _make_directories(files, members, remote)
                await each(_tar_files(files, tar, infos, remote), _write_small(files), AT_ONCE)
        except tarfile.TarError as error:
            raise SpecError(f"not a tar archive: {error}", field="archive") from error


Small = tuple[str, Member, bytes]


async def _tar_files(
    files: Files, tar: tarfile.TarFile, infos: list[tarfile.TarInfo], remote: str
) -> AsyncIterator[Small]:
    """Path, member and content of what is small; the rest is written here, since a tar is read in order."""
    for info in infos:
        member = archive.of_tar(info)
        if member.type == "directory":
            continue
        content = tar.extractfile(info) if member.type == "file" else io.BytesIO()
        assert content is not None  # a regular file has one
        if member.size > CHUNK:
            await files.write(_below(remote, member), _read_all(content), mode=member.mode)
        else:
            yield _below(remote, member), member, await asyncio.to_thread(content.read)


async def _read_all(content: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(content.read, CHUNK):
        yield piece


class _write_small:  # noqa: N801 - a function with its `files`
    def __init__(self, files: Files) -> None:
        self._files = files

    async def __call__(self, small: Small) -> None:
        path, member, data = small
        if member.type == "symlink":
            await self._files.symlink(path, member.target)
        else:
            await self._files.write(path, data, mode=member.mode)


async def download(files: Files, remote: str, local: Path) -> None:
    """A file or directory of the sandbox to `local`."""
    found = await files.stat(remote)
    if local.is_dir():
        raise SpecError(f"{local} is a directory already: name a path that is not there", field="local")
    scratch = Path(tempfile.mkdtemp(prefix=f".{local.name}.", dir=local.parent))
    try:
        fresh = scratch / "fresh"
        if stat.S_ISDIR(found.mode):
            await _fetch_tree(files, remote, fresh)
        else:
            await _fetch_file(files, remote, fresh, found.mode & 0o777)
        await asyncio.to_thread(os.replace, fresh, local)
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch)


async def download_tar(files: Files, remote: str, into: IO[bytes] | None) -> bytes:
    """Directory `remote` as a tar, written to `into` or returned."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=into or buffer, mode="w") as tar:
        for member in archive.check(await _remote_members(files, remote)):
            await _add(files, tar, member, remote)
    return buffer.getvalue()


async def _add(files: Files, tar: tarfile.TarFile, member: Member, remote: str) -> None:
    info = tarfile.TarInfo(member.name)
    info.mode = member.mode
    if member.type == "directory":
        info.type = tarfile.DIRTYPE
    elif member.type == "symlink":
        info.type, info.linkname = tarfile.SYMTYPE, member.target
    else:
        with tempfile.SpooledTemporaryFile(SPOOL) as spool:  # a header comes first and needs the size
            async for chunk in files.read_stream(_below(remote, member)):
                await asyncio.to_thread(spool.write, chunk)
            info.size = spool.tell()
            spool.seek(0)
            await asyncio.to_thread(tar.addfile, info, spool)
        return
    tar.addfile(info)


async def _fetch_tree(files: Files, remote: str, top: Path) -> None:
    members = archive.check(await _remote_members(files, remote), links_inside=True)
    top.mkdir()
    for member in members:
        if member.type == "directory":
            (top / member.name).mkdir()

    async def one(member: Member) -> None:
        if member.type == "symlink":
            (top / member.name).symlink_to(member.target)
        elif member.type == "file":
            await _fetch_file(files, _below(remote, member), top / member.name, member.mode)

    await each(stream_of(members), one, AT_ONCE)


async def _fetch_file(files: Files, remote: str, local: Path, mode: int) -> None:
    """A new file; chunks are written as they come, a small one at once."""
    chunks = files.read_stream(remote)
    first = await anext(chunks, b"")
    file = await asyncio.to_thread(_new_file, local, first, mode)
    if file is None:
        return
    try:
        async for chunk in chunks:
            await asyncio.to_thread(file.write, chunk)
    finally:
        await asyncio.to_thread(file.close)


def _new_file(path: Path, start: bytes, mode: int) -> IO[bytes] | None:
    """The file with its beginning; None when that is all of it."""
    file = path.open("xb")
    os.fchmod(file.fileno(), mode)
    file.write(start)
    if len(start) == CHUNK:
        return file
    file.close()
    return None


async def _remote_members(files: Files, remote: str) -> list[Member]:
    """Everything below `remote`, by listing; what a listing names is checked before it is used as a path."""
    found: list[Member] = []
    below: list[str] = []

    async def one(at: str) -> None:
        for entry in await files.list(f"{remote.rstrip('/')}/{at}".rstrip("/") or "/"):
            name = entry.path.rsplit("/", 1)[-1]
            member = archive.of_mode(f"{at}/{name}" if at else name, entry.mode, entry.size, entry.target)
            found.append(member)
            if member.type == "directory":
                below.append(member.name)

    level = [""]
    while level:
        await each(stream_of(level), one, AT_ONCE)
        level, below[:] = below[:], []
    return found


def _local_members(top: Path) -> Iterator[Member]:
    for directory, subdirectories, names in os.walk(top):
        for name in sorted([*subdirectories, *names]):
            path = Path(directory, name)
            about = path.lstat()
            target = str(path.readlink()) if stat.S_ISLNK(about.st_mode) else None
            yield archive.of_mode(path.relative_to(top).as_posix(), about.st_mode, about.st_size, target)


async def _make_directories(files: Files, members: list[Member], remote: str) -> None:
    """Parents before what is in them, as `check` has sorted them."""

    async def one(member: Member) -> None:
        await files.mkdir(_below(remote, member), mode=member.mode)

    await files.mkdir(remote)
    directories = (member for member in members if member.type == "directory")
    for _, level in itertools.groupby(directories, lambda member: member.name.count("/")):
        await each(stream_of(level), one, AT_ONCE)


def _below(remote: str, member: Member) -> str:
    return f"{remote.rstrip('/')}/{member.name}"
