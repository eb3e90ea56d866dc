"""Files of one sandbox: bytes and streams in chunks, several in flight.

Paths are absolute inside the sandbox. Reading follows what the sandbox holds at that moment: a file that is
written meanwhile comes as a mixture, as with any reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

from dsec.bus.frames import unpack_data
from dsec.bus.messages import FileInfo
from dsec.sdk.concurrency import ahead, each
from dsec.sdk.file_watch import FileWatch, watching
from dsec.sdk.link import Link, new_operation

CHUNK: Final = 256 * 1024
"""Bytes of one request; the broker's frames stay well below its payload limit."""
IN_FLIGHT: Final = 4

Content = bytes | str | Path | AsyncIterable[bytes]


class Files:
    """`sandbox.files`. Every method raises NoSuchSandbox, NodeLost and BrokerDown besides what it tells."""

    def __init__(self, link: Link, sandbox: str) -> None:
        self._link = link
        self._sandbox = sandbox

    async def read(self, path: str) -> bytes:
        """All of a file. Raises NoSuchFile when there is none, or it is not a regular file."""
        return b"".join([chunk async for chunk in self.read_stream(path)])

    async def read_stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        """A file from byte `offset` on, in chunks. Raises NoSuchFile."""
        first = await self._read(path, offset)
        if first:
            yield first
        if len(first) < CHUNK:
            return
        later = ahead((self._read(path, at) for at in itertools.count(offset + CHUNK, CHUNK)), IN_FLIGHT)
        try:
            async for chunk in later:
                if chunk:
                    yield chunk
                if len(chunk) < CHUNK:
                    return
        finally:
            await later.aclose()  # type: ignore[attr-defined]  # it is an asynchronous generator

    async def write(self, path: str, data: Content, *, mode: int = 0o644) -> None:
        """A file with exactly this content; missing parents are made. A Path is a local file, read in chunks.

        Raises NoSuchFile when `path` is a directory or its parent is none, DiskFull, LimitError.
        """
        chunks = _numbered(_chunks(data))
        head = await anext(chunks)
        await self._write(path, head[1], mode=mode, truncate=True)

        async def rest(chunk: tuple[int, bytes]) -> None:
            await self._write(path, chunk[1], offset=chunk[0], mode=mode)

        await each(chunks, rest, IN_FLIGHT)

    async def stat(self, path: str) -> FileInfo:
        """What lies at `path`; a symbolic link is not followed. Raises NoSuchFile."""
        return FileInfo.model_validate(await self._call("stat", {"path": path}))

    async def list(self, path: str) -> list[FileInfo]:
        """The entries of a directory, all of them, in the order of their names. Raises NoSuchFile."""
        entries: list[FileInfo] = []
        after = ""
        while page := await self._call("list", {"path": path, "after": after}):
            entries += [FileInfo.model_validate(entry) for entry in page]
            after = PurePosixPath(entries[-1].path).name
        return entries

    async def remove(self, path: str, *, recursive: bool = False, key: str | None = None) -> None:
        """Remove a file or link, a directory only with `recursive`; links are not followed. Raises
        NoSuchFile.
        """
        await self._call("remove", {"path": path, "recursive": recursive}, op=key)

    async def mkdir(self, path: str, *, mode: int = 0o755) -> None:
        """A directory and its missing parents; silent when it is there. Raises NoSuchFile, DiskFull."""
        await self._write(path, b"", mode=mode, directory=True)

    async def symlink(self, path: str, target: str) -> None:
        """A symbolic link at `path`; missing parents are made. Raises NoSuchFile, DiskFull."""
        await self._write(path, b"", target=target)

    def watch(
        self, path: str, *, recursive: bool = False
    ) -> contextlib.AbstractAsyncContextManager[FileWatch]:
        """Changes below directory `path`, for `async with`, from the beginning of the block on; of a file,
        those of its name. They end when `path` itself is gone.

        Each comes at least once. After `overflow` and `restarted` some may be missing: look at what is there.
        Raises NoSuchFile, Unsupported (/proc, /dev, /sys), TooLarge (more than 4,096 directories), LimitError
        (more than 16 watches), SpecError once the sandbox is stopped.
        """
        return watching(self._link, self._sandbox, path, recursive=recursive)

    async def _read(self, path: str, offset: int) -> bytes:
        body = {"path": path, "offset": offset, "length": CHUNK}
        answer = await self._link.ask(self._link.subject("file", "read", self._sandbox), body)
        return unpack_data(answer)[1]

    async def _write(self, path: str, data: bytes, **header: Any) -> None:
        subject = self._link.subject("file", "write", self._sandbox)
        await self._link.ask(subject, {"path": path, **header}, data=data, op=new_operation())

    async def _call(self, verb: str, body: dict[str, Any], op: str | None = None) -> Any:
        return await self._link.call(self._link.subject("file", verb, self._sandbox), body, op=op)


async def _chunks(data: Content) -> AsyncIterator[bytes]:
    """`data` cut into full chunks; at least one, if need be an empty one."""
    if isinstance(data, Path):
        source: AsyncIterable[bytes] = _local(data)
    elif isinstance(data, (bytes, str)):
        source = _cut(data.encode() if isinstance(data, str) else data)
    else:
        source = data
    held = bytearray()
    empty = True
    async for piece in source:
        held += piece
        while len(held) >= CHUNK:
            yield bytes(held[:CHUNK])
            del held[:CHUNK]
            empty = False
    if held or empty:
        yield bytes(held)


async def _cut(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), CHUNK):
        yield data[at : at + CHUNK]


async def _local(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while piece := await asyncio.to_thread(file.read, CHUNK):
            yield piece
    finally:
        await asyncio.to_thread(file.close)


async def _numbered(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    at = 0
    async for chunk in chunks:
        yield at, chunk
        at += len(chunk)
