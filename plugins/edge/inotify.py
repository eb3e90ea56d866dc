"""inotify(7) and openat2(2), which Python does not wrap.

Numbers and layouts: linux/inotify.h, linux/openat2.h.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from enum import IntFlag
from typing import Final, NamedTuple

from dsec.bus.userns import acting_as

READ: Final = 16 * 1024
"""Bytes of events that are taken at once; the longest has 272."""
_HEAD: Final = struct.Struct("iIII")
_OPENAT2: Final = 437
_RESOLVE_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH, _IN_ROOT = 0x01, 0x02, 0x04, 0x08, 0x10
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Mask(IntFlag):
    MODIFY = 0x2
    CLOSE_WRITE = 0x8
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    UNMOUNT = 0x2000
    Q_OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x1000000
    EXCL_UNLINK = 0x4000000
    ISDIR = 0x40000000


WANTED: Final = (
    *(Mask.MODIFY, Mask.CLOSE_WRITE, Mask.MOVED_FROM, Mask.MOVED_TO, Mask.CREATE, Mask.DELETE),
    *(Mask.DELETE_SELF, Mask.MOVE_SELF, Mask.ONLYDIR, Mask.EXCL_UNLINK),
)
_WANTED: Final = sum(WANTED)


class Raw(NamedTuple):
    """One event as the kernel tells it; `name` is empty for the watched directory itself."""

    watch: int
    mask: Mask
    cookie: int
    name: bytes


def instance(uid: int) -> int:
    """A new instance that the kernel counts, with all its watches, as one of `uid`. Raises OSError."""
    with acting_as(uid):
        made = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        number = ctypes.get_errno()
    return _checked(made, number)


def add(instance: int, directory: int) -> int:
    """Watch the open `directory`; the number is the same for the same directory. Raises OSError."""
    made = _LIBC.inotify_add_watch(instance, b"/proc/self/fd/%d" % directory, ctypes.c_uint32(_WANTED))
    return _checked(made, ctypes.get_errno())


def drop(instance: int, watch: int) -> None:
    """Silent for one that is gone."""
    _LIBC.inotify_rm_watch(instance, watch)


def read(instance: int) -> list[Raw]:
    """What has happened, up to `READ` bytes of it."""
    try:
        return list(parse(os.read(instance, READ)))
    except BlockingIOError:
        return []


def parse(data: bytes) -> Iterator[Raw]:
    at = 0
    while at < len(data):
        watch, mask, cookie, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size + length
        yield Raw(watch, Mask(mask), cookie, data[at - length : at].rstrip(b"\0"))


def open_in_root(root: int, path: bytes) -> int:
    """An O_PATH descriptor of `path`, links followed as if `root` were the root directory. Raises OSError."""
    return _openat2(root, path, os.O_PATH, _IN_ROOT | _NO_MAGICLINKS)


def open_beneath(directory: int, path: bytes) -> int:
    """A directory of the same mount below `directory`, no link followed. Raises OSError."""
    how = _RESOLVE_NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
    return _openat2(directory, path or b".", os.O_RDONLY | os.O_DIRECTORY, how)


def _openat2(directory: int, path: bytes, flags: int, resolve: int) -> int:
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, 0, resolve)
    made = _LIBC.syscall(
        ctypes.c_long(_OPENAT2), ctypes.c_int(directory), path, ctypes.byref(how), ctypes.c_size_t(24)
    )
    return _checked(int(made), ctypes.get_errno())


def _checked(result: int, number: int) -> int:
    if result < 0:
        raise OSError(number, os.strerror(number))
    return result
