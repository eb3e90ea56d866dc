"""File operations inside a sandbox. Large reads and writes are split into datagrams, several under way."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final

from dsec.bus.chronus import protocol
from dsec.bus.chronus.faults import file_fault
from dsec.bus.chronus.protocol import DATA_MAX, Entry, Flag, Op, Reply
from dsec.bus.errors import NoSuchFile, SpecError
from dsec.bus.messages import FileInfo

WINDOW: Final = 16 * DATA_MAX
"""Bytes asked for, or sent, before the next part waits for the former."""
PATH_MAX: Final = 4095
Page = list[FileInfo]
Replies = list[Reply]
Asked = list[asyncio.Future[Reply]]
Entries = list[Entry]
Parts = list[bytes]
_ESCAPE: Final = re.compile(r"\\x([89a-f][0-9a-f])")


class Files(ABC):
    """The part of a Guest that works on files, as root inside; procfs is refused: it would be the agent's.

    All raise NoSuchFile (also for what is not of the kind asked for), PolicyError (not permitted, read-only),
    LimitError (no space), AgentCrippled. In paths, bytes that are not UTF-8 are written `\\xNN`.
    """

    __slots__ = ()

    @abstractmethod
    def _submit(self, op: Op, body: bytes, flags: int = 0) -> asyncio.Future[Reply]:
        """Send a request; the future has its reply or AgentCrippled."""

    async def stat(self, path: str) -> FileInfo:
        """Of a symbolic link itself."""
        reply = await self._ask(Op.STAT, path)
        found = [_info(entry, path) for entry in self._entries(reply)]
        if len(found) != 1:
            raise self._malformed(f"{len(found)} answers to a stat")
        return found[0]

    async def list(self, path: str, after: str = "") -> Page:
        """A page (up to 256 entries) of a directory, by the bytes of the names; empty: nothing follows.

        `path` of an entry is that of the directory and its name. `after`: the last name of the page before.
        """
        reply = await self._ask(Op.LIST, path, after=_encode(after, empty=True))
        return [_info(entry, _join(path, _decode(entry.name))) for entry in self._entries(reply)]

    async def read(self, path: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes of a regular file; fewer at its end."""
        parts: Parts = []
        for begin in range(offset, offset + length, WINDOW):
            got = await self._read_window(path, begin, min(WINDOW, offset + length - begin))
            parts += got
            if sum(map(len, got)) < WINDOW:
                break
        return b"".join(parts)

    async def write(
        self, path: str, offset: int, data: bytes, *, mode: int = 0o644, truncate: bool = False
    ) -> None:
        """Write at `offset`; a new file gets `mode`, parents 0755. `truncate`: start the file anew."""
        flags = Flag.TRUNCATE if truncate else Flag.NONE
        for begin in range(0, max(len(data), 1), WINDOW):
            window = data[begin : begin + WINDOW]
            asked = []
            for at, part in _parts(offset + begin, window):
                asked.append(self._submit(Op.WRITE, _write_body(path, at, mode, part), flags))
                flags = Flag.NONE
            await self._all(asked, path)

    async def mkdir(self, path: str, mode: int = 0o755) -> None:
        """With parents; a directory that is there already stays as it is."""
        await self._ask(Op.MKDIR, path, before=mode.to_bytes(4, "little"))

    async def symlink(self, path: str, target: str) -> None:
        """Make the link `path`; `target` is not looked at."""
        await self._ask(Op.SYMLINK, path, after=_encode(target))

    async def remove(self, path: str, recursive: bool = False) -> None:  # noqa: FBT001, FBT002 (as in pathlib)
        """A file, link or empty directory; `recursive`: the whole tree. No symbolic link is followed."""
        await self._ask(Op.REMOVE, path, flags=Flag.RECURSIVE if recursive else Flag.NONE)

    async def _ask(
        self, op: Op, path: str, *, before: bytes = b"", after: bytes = b"", flags: int = 0
    ) -> Reply:
        [reply] = await self._all([self._submit(op, before + _encode(path) + after, flags)], path)
        return reply

    async def _read_window(self, path: str, offset: int, length: int) -> Parts:
        asked = []
        for at in range(offset, offset + length, DATA_MAX):
            size = min(DATA_MAX, offset + length - at)
            body = at.to_bytes(8, "little") + size.to_bytes(4, "little") + _encode(path)
            asked.append(self._submit(Op.READ, body))
        parts: Parts = []
        for reply in await self._all(asked, path):
            if len(reply.body) > DATA_MAX:
                raise self._malformed("more was read than was asked for")
            parts.append(reply.body)
            if len(reply.body) < DATA_MAX:
                break
        return parts

    async def _all(self, asked: Asked, path: str) -> Replies:
        replies = await asyncio.gather(*asked)
        for reply in replies:
            if reply.error:
                raise file_fault(reply.error, path)
        return replies

    def _entries(self, reply: Reply) -> Entries:
        try:
            return [*protocol.entries(reply.body)]
        except protocol.Malformed as error:
            raise self._malformed(str(error)) from error

    @abstractmethod
    def _malformed(self, what: str) -> Exception:
        """Close the channel; AgentCrippled to raise."""


def _parts(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """(offset, part) of at most DATA_MAX; one empty part of no data."""
    for begin in range(0, max(len(data), 1), DATA_MAX):
        yield offset + begin, data[begin : begin + DATA_MAX]


def _write_body(path: str, offset: int, mode: int, data: bytes) -> bytes:
    return offset.to_bytes(8, "little") + mode.to_bytes(4, "little") + _encode(path) + data


def _encode(path: str, *, empty: bool = False) -> bytes:
    """A path as the inside has it. Raises SpecError or NoSuchFile for what cannot be one."""
    raw = path.encode("utf-8", "surrogateescape")
    if b"\\x" in raw:
        raw = b"".join(_unescaped(path))
    if b"\0" in raw:
        raise SpecError("a path has no NUL in it", field="path")
    if len(raw) > PATH_MAX or not (raw or empty):
        raise NoSuchFile(f"{path[:80]!r}: {'too long' if raw else 'empty'}", field="path")
    return raw + b"\0"


def _unescaped(path: str) -> Iterator[bytes]:
    for index, piece in enumerate(_ESCAPE.split(path)):
        yield bytes.fromhex(piece) if index % 2 else piece.encode("utf-8", "surrogateescape")


def _decode(raw: str) -> str:
    """Surrogates, which no JSON can carry, as `\\xNN`."""
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


def _info(entry: Entry, path: str) -> FileInfo:
    return FileInfo(
        path=path,
        size=entry.size,
        mode=entry.mode,
        mtime=entry.mtime_ns / 1e9,
        uid=entry.uid,
        gid=entry.gid,
        target=_decode(entry.target) if entry.target else None,
    )
