"""Copying entries of an overlay's writable layer, by descriptors and without following any symlink.

Marks of overlayfs (https://docs.kernel.org/filesystems/overlayfs.html): a whiteout is a character device 0/0,
an opaque directory has `trusted.overlay.opaque=y`. Both are kept; what else overlayfs notes in `trusted.*`
(origin, impure, uuid) tells of this one mount and is left out, so that equal layers get equal images.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from typing import Final

from dsec.bus.errors import DiskFull, LimitError
from dsec.plugins.images import kernel

OPAQUE: Final = "trusted.overlay.opaque"
_MOST: Final = 1_000_000
"""Entries of a packed layer: each takes memory of the node meanwhile, in here and in mkfs.erofs."""
_LONGEST_PATH: Final = 3_800
"""mkfs.erofs puts the directory in front, and PATH_MAX is 4,096."""
_LONGEST_NAME: Final = 254
"""mkfs.erofs 1.5 cuts a name of 255 bytes off and then does not find it."""
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_SPECIAL: Final = stat.S_ISUID | stat.S_ISGID


class Entries:
    """Copies entries of `upper` to `target`; paths are bytes relative to these two directories.

    `strict` keeps regular files, directories and whiteouts only, and no set-id bit or file capability. What
    is dropped does not exist in the layer: where a lower layer has that name, a whiteout takes its place.
    """

    def __init__(self, upper: int, lowers: list[int], target: int, *, strict: bool) -> None:
        self._upper = upper
        self._lowers = lowers
        self._target = target
        self._strict = strict
        self._linked: dict[int, bytes] = {}
        self._directories: list[tuple[bytes, os.stat_result]] = []
        free = os.fstatvfs(target)
        self._room = free.f_bavail * free.f_frsize
        self._left = _MOST

    def copy(self, path: bytes, *, merged: bool) -> None:
        """The entry at `path` and all below it. `merged`: lower layers show through around it."""
        pending = [(path, merged)]
        while pending:
            path, merged = pending.pop()
            found = self._stat(path)
            if not stat.S_ISDIR(found.st_mode):
                self._leaf(path, found, merged=merged)
                continue
            merged = self._directory(path, found) and merged
            pending += [(name, merged) for name in self._children(path)]

    def find(self, path: bytes) -> os.stat_result | None:
        """The entry itself, if the writable layer has one there."""
        try:
            return self._stat(path)
        except FileNotFoundError:
            return None

    def is_below(self, path: bytes) -> bool:
        """Whether a lower layer has such a name."""
        return self._lower(path) is not None

    def is_opaque(self, path: bytes) -> bool:
        """Whether directory `path` hides all that lower layers have there."""
        with opened(self._upper, path, _OPEN | os.O_DIRECTORY) as directory:
            return _xattrs(directory).get(OPAQUE) == b"y"

    def parent(self, path: bytes) -> None:
        """Make directory `path` on the way to what is kept; it looks as it does in the lower layers."""
        found = self._lower(path, os.O_DIRECTORY) or self._stat(path)
        with contextlib.suppress(FileExistsError):
            self._make_directory(path, found, {}, found.st_mode & ~_SPECIAL)

    def make_opaque(self, path: bytes) -> None:
        """The copied directory `path` hides what lower layers have there."""
        with opened(self._target, path, _OPEN | os.O_DIRECTORY) as directory:
            os.setxattr(directory, OPAQUE, b"y")

    def hide(self, path: bytes) -> None:
        """A whiteout at `path`, if a lower layer has such a name."""
        if self.is_below(path):
            self._whiteout(path)

    def finish(self) -> None:
        """Times of directories, now that nothing more is put into them."""
        for path, found in reversed(self._directories):
            with opened(self._target, path, _OPEN | os.O_DIRECTORY) as directory:
                os.utime(directory, ns=(found.st_mtime_ns, found.st_mtime_ns))

    def _stat(self, path: bytes) -> os.stat_result:
        with opened(self._upper, path, os.O_PATH | os.O_NOFOLLOW) as entry:
            return os.fstat(entry)

    def _children(self, path: bytes) -> list[bytes]:
        with opened(self._upper, path, _OPEN | os.O_DIRECTORY) as directory:
            names = sorted(_names(directory, self._left))
        self._left -= len(names)
        if self._left <= 0:
            raise LimitError(f"a layer of {_MOST} files or more cannot be packed")
        paths = [path + b"/" + name if path else name for name in names]
        if any(len(name) > _LONGEST_NAME for name in names) or any(len(one) > _LONGEST_PATH for one in paths):
            raise LimitError(
                f"names over {_LONGEST_NAME} and paths over {_LONGEST_PATH} bytes cannot be packed"
            )
        return paths

    def _directory(self, path: bytes, found: os.stat_result) -> bool:
        """Copy one directory without its children; whether lower layers show through in it."""
        with opened(self._upper, path, _OPEN | os.O_DIRECTORY) as directory:
            attributes = _xattrs(directory)
        self._make_directory(path, found, self._kept(attributes), self._mode(found))
        return OPAQUE not in attributes

    def _make_directory(
        self, path: bytes, found: os.stat_result, attributes: dict[str, bytes], mode: int
    ) -> None:
        if path:
            with _parent(self._target, path) as (parent, name):
                os.mkdir(name, dir_fd=parent)
        with opened(self._target, path, _OPEN | os.O_DIRECTORY) as directory:
            _dress(directory, found, attributes, mode)
        self._directories.append((path, found))

    def _leaf(self, path: bytes, found: os.stat_result, *, merged: bool) -> None:
        if is_whiteout(found):
            self._whiteout(path)
        elif stat.S_ISREG(found.st_mode):
            self._file(path, found)
        elif not self._strict:
            self._other(path, found)
        elif merged:
            self.hide(path)

    def _whiteout(self, path: bytes) -> None:
        with _parent(self._target, path) as (parent, name):
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=parent)
            os.utime(name, ns=(0, 0), dir_fd=parent)

    def _file(self, path: bytes, found: os.stat_result) -> None:
        if first := self._linked.get(found.st_ino):
            with _parent(self._target, first) as (old, name), _parent(self._target, path) as (new, alias):
                os.link(name, alias, src_dir_fd=old, dst_dir_fd=new, follow_symlinks=False)
            return
        self._reserve(found.st_size)
        with opened(self._upper, path, _OPEN) as source, _parent(self._target, path) as (parent, name):
            copy = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent)
            try:
                _copy_data(source, copy, found.st_size)
                _dress(copy, found, self._kept(_xattrs(source)), self._mode(found))
            finally:
                os.close(copy)
        if found.st_nlink > 1:
            self._linked[found.st_ino] = path

    def _other(self, path: bytes, found: os.stat_result) -> None:
        """A symlink, pipe, socket or device, as it is."""
        with _parent(self._upper, path) as (source, name), _parent(self._target, path) as (parent, _):
            if stat.S_ISLNK(found.st_mode):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=parent)
            else:
                os.mknod(name, found.st_mode, found.st_rdev, dir_fd=parent)
                os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=parent)
            os.chown(name, found.st_uid, found.st_gid, dir_fd=parent, follow_symlinks=False)
            times = (found.st_mtime_ns, found.st_mtime_ns)
            os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)

    def _reserve(self, size: int) -> None:
        """A sparse file counts in full: mkfs.erofs reads the holes, too."""
        self._room -= size
        if self._room < 0:
            raise DiskFull("the writable layer is larger than the node's free space")

    def _mode(self, found: os.stat_result) -> int:
        return found.st_mode & ~_SPECIAL if self._strict else found.st_mode

    def _kept(self, attributes: dict[str, bytes]) -> dict[str, bytes]:
        unwanted = ("trusted.", "security.capability") if self._strict else ("trusted.",)
        return {
            name: value
            for name, value in attributes.items()
            if (name == OPAQUE and value == b"y") or not name.startswith(unwanted)
        }

    def _lower(self, path: bytes, flags: int = 0) -> os.stat_result | None:
        """What the topmost lower layer that has `path` has there."""
        for layer in self._lowers:
            with (
                contextlib.suppress(OSError),
                opened(layer, path, os.O_PATH | os.O_NOFOLLOW | flags) as entry,
            ):
                return os.fstat(entry)
        return None


def is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


@contextlib.contextmanager
def opened(root: int, path: bytes, flags: int) -> Iterator[int]:
    """Descriptor of `path` beneath `root`, no symlink on the way."""
    descriptor = kernel.open_beneath(root, path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _parent(root: int, path: bytes) -> Iterator[tuple[int, bytes]]:
    """Descriptor of the directory that holds `path`, and the name in it."""
    directory, _, name = path.rpartition(b"/")
    with opened(root, directory, os.O_PATH | os.O_DIRECTORY) as parent:
        yield parent, name


def _names(directory: int, most: int) -> list[bytes]:
    with os.scandir(directory) as found:
        return [os.fsencode(entry.name) for entry in itertools.islice(found, most)]


def _xattrs(entry: int) -> dict[str, bytes]:
    return {name: os.getxattr(entry, name) for name in os.listxattr(entry)}


def _dress(entry: int, found: os.stat_result, attributes: dict[str, bytes], mode: int) -> None:
    """Owner first: a change of it clears set-id bits and capabilities."""
    os.fchown(entry, found.st_uid, found.st_gid)
    os.fchmod(entry, stat.S_IMODE(mode))
    for name, value in attributes.items():
        os.setxattr(entry, name, value)
    os.utime(entry, ns=(found.st_mtime_ns, found.st_mtime_ns))


def _copy_data(source: int, copy: int, size: int) -> None:
    """Data without the holes between; shared blocks where the file system can."""
    os.ftruncate(copy, size)
    start = 0
    while start < size:
        try:
            start = os.lseek(source, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(source, start, os.SEEK_HOLE)
        os.lseek(source, start, os.SEEK_SET)
        os.lseek(copy, start, os.SEEK_SET)
        while start < end:
            moved = _copy_some(source, copy, end - start)
            if not moved:
                return
            start += moved


def _copy_some(source: int, copy: int, count: int) -> int:
    try:
        return os.copy_file_range(source, copy, count)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL}:
            raise
        return os.sendfile(copy, source, None, count)
