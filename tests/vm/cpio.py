"""Archives in the "newc" format of cpio, which the kernel unpacks as its first file system. Pure.

Format: linux/Documentation/driver-api/early-userspace/buffer-format.rst. Several may follow one another.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_MAGIC: Final = b"070701"
_END: Final = "TRAILER!!!"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path, relative to the root; `mode` as st_mode tells it, `device` (major, minor) of a device."""

    name: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def directory(name: str) -> Entry:
    return Entry(name, stat.S_IFDIR | 0o755)


def file(name: str, data: bytes, mode: int = 0o644) -> Entry:
    return Entry(name, stat.S_IFREG | mode, data)


def link(name: str, target: str) -> Entry:
    return Entry(name, stat.S_IFLNK | 0o777, target.encode())


def archive(entries: Iterable[Entry]) -> bytes:
    """The entries in their order, owned by root; directories must stand before what they hold."""
    parts = [_member(number, entry) for number, entry in enumerate((*entries, Entry(_END, 0)), 1)]
    return b"".join(part for pair in parts for part in pair)


def _member(number: int, entry: Entry) -> Iterator[bytes]:
    name = entry.name.encode() + b"\0"
    fields = (number, entry.mode, 0, 0, 1, 0, len(entry.data), 0, 0, *entry.device, len(name), 0)
    head = _MAGIC + b"".join(b"%08X" % field for field in fields) + name
    yield head.ljust(_padded(len(head)), b"\0")
    yield entry.data.ljust(_padded(len(entry.data)), b"\0")


def _padded(size: int) -> int:
    return (size + 3) & ~3
