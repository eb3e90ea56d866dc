"""tee(2), fallocate(2) and the pipe queries that Python's standard library does not wrap."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import struct
import termios
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)
_libc.tee.restype = ctypes.c_ssize_t
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
_SPLICE_F_NONBLOCK: Final = 2
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_INT: Final = struct.Struct("i")


def tee(source: int, target: int, length: int) -> int:
    """Copy up to `length` bytes from pipe to pipe without taking them out of `source`; how many it were."""
    copied: int = _libc.tee(source, target, length, _SPLICE_F_NONBLOCK)
    if copied >= 0:
        return copied
    code = ctypes.get_errno()
    if code == errno.EAGAIN:
        return 0
    raise OSError(code, os.strerror(code))


def punch(descriptor: int, offset: int, length: int) -> None:
    """Give back the memory of a range of a tmpfs file; its size stays."""
    if _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, length) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def waiting(pipe: int) -> int:
    """How many bytes a pipe holds."""
    (count,) = _INT.unpack(fcntl.ioctl(pipe, termios.FIONREAD, _INT.pack(0)))
    return int(count)


def closed(pipe: int) -> bool:
    """Whether nobody can write into a pipe any more; it may still hold bytes."""
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))
