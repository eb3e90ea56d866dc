"""The system calls that Python does not wrap: the mount API, setfsuid, openat2, user namespaces.

Each function is one call and raises OSError with what it was about. Constants and structures follow
linux/mount.h, linux/openat2.h and linux/sched.h; numbers of calls younger than 5.0 are the same everywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_SYS = {"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432}
_SYS |= {"openat2": 437, "mount_setattr": 442}
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_CLOEXEC: Final = 1
_OPEN_TREE_CLONE: Final = 1
_MOVE_MOUNT_F_EMPTY_PATH: Final = 4
_MOUNT_ATTR_IDMAP: Final = 0x00100000
_RESOLVE: Final = 0x02 | 0x04 | 0x08  # NO_MAGICLINKS, NO_SYMLINKS, BENEATH
_PR_SET_SECUREBITS: Final = 28
_NO_SETUID_FIXUP: Final = 4
MOUNT_RDONLY: Final = 0x01
MOUNT_NODEV: Final = 0x04
MNT_DETACH: Final = 2

Version = tuple[int, int]
FILE_BACKED: Final[Version] = (6, 12)
"""EROFS mounts a file as it is from here on; before, through a loop device."""
DESCRIPTORS: Final[Version] = (6, 13)
"""overlayfs takes descriptors of layers from here on; before, they must be attached somewhere."""
UUID_NULL: Final[Version] = (6, 6)
"""overlayfs has `uuid=null` from here on; before, `uuid=off` means the same."""


def version(release: str | None = None) -> Version:
    """Of `release` as uname(2) tells it, of the running kernel by default."""
    major, minor = re.findall(r"\d+", release or os.uname().release)[:2]
    return int(major), int(minor)


class FsContext:
    """A file system being configured (fsopen); the kernel's complaint becomes part of the OSError."""

    def __init__(self, kind: str) -> None:
        self._fd = _call("fsopen", kind.encode(), _CLOEXEC, about=kind)
        self._kind = kind

    def flag(self, key: str) -> None:
        self._config(0, key, None, 0)

    def text(self, key: str, value: str | os.PathLike[str]) -> None:
        self._config(1, key, os.fsencode(value), 0)

    def descriptor(self, key: str, fd: int) -> None:
        """The file behind `fd`, which must stay open until `mount`."""
        self._config(5, key, None, fd)

    def mount(self, attributes: int) -> int:
        """Make the file system; the descriptor of its detached mount."""
        self._config(6, None, None, 0)
        return _call("fsmount", self._fd, _CLOEXEC, attributes, about=self._kind)

    def close(self) -> None:
        os.close(self._fd)

    def _config(self, command: int, key: str | None, value: bytes | None, fd: int) -> None:
        name = key.encode() if key else None
        try:
            _call("fsconfig", self._fd, command, name, value, fd, about=self._kind)
        except OSError as error:
            raise OSError(
                error.errno, error.strerror, f"{self._kind} {key or ''} {self._complaint()}"
            ) from None

    def _complaint(self) -> str:
        lines = []
        with contextlib.suppress(OSError):
            while line := os.read(self._fd, 512):
                lines.append(line.decode(errors="replace").strip())
        return "; ".join(lines)


def attach(mount: int, target: str | os.PathLike[str]) -> None:
    """Put a detached mount at `target`; symlinks are not followed in the last component."""
    path = os.fsencode(target)
    _call("move_mount", mount, b"", _AT_FDCWD, path, _MOVE_MOUNT_F_EMPTY_PATH, about=path)


def mount(kind: str, target: str | os.PathLike[str], flags: int, options: str) -> None:
    """mount(2), for what the kernels without the new interface take."""
    name = os.fsencode(target)
    if _libc.mount(kind.encode(), name, kind.encode(), ctypes.c_ulong(flags), os.fsencode(options)):
        raise _error(f"{kind} at {os.fsdecode(target)}".encode())


def idmapped_clone(path: str | os.PathLike[str], userns: int, *, readonly: bool) -> int:
    """Descriptor of a detached copy of the mount at `path` whose owners are shifted by `userns`."""
    name = os.fsencode(path)
    tree = _call("open_tree", _AT_FDCWD, name, _OPEN_TREE_CLONE | os.O_CLOEXEC, about=name)
    fields = (_MOUNT_ATTR_IDMAP | (MOUNT_RDONLY if readonly else 0), 0, 0, userns)
    attributes = (ctypes.c_uint64 * 4)(*fields)
    try:
        _call("mount_setattr", tree, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), 32, about=name)
    except BaseException:
        os.close(tree)
        raise
    return tree


def unmount(target: str | os.PathLike[str], flags: int = 0) -> None:
    path = os.fsencode(target)
    if _libc.umount2(path, flags):
        raise _error(path)


def open_beneath(directory: int, path: bytes, flags: int) -> int:
    """Open `path`, relative to and beneath `directory`, if no component of it is a symlink (else ELOOP)."""
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, 0, _RESOLVE)
    return _call("openat2", directory, path or b".", ctypes.byref(how), 24, about=path)


@contextlib.contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """This thread touches files as `uid` and keeps its capabilities; undone at the end of the block.

    Sets the thread's NO_SETUID_FIXUP for good: run it in a thread that starts no process.
    """
    if _libc.prctl(_PR_SET_SECUREBITS, _NO_SETUID_FIXUP, 0, 0, 0):
        raise _error(b"prctl(PR_SET_SECUREBITS)")
    _libc.setfsuid(uid)
    _libc.setfsgid(uid)
    try:
        yield
    finally:
        _libc.setfsuid(0)
        _libc.setfsgid(0)


def _call(name: str, *arguments: object, about: str | bytes) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = int(_libc.syscall(ctypes.c_long(_SYS[name]), *words))
    if result < 0:
        raise _error(about)
    return result


def _error(about: str | bytes) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), os.fsdecode(about))
