"""Generated from sdk/files.py by `make twin`: change that file, not this one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from dsec.bus.messages import FileInfo
from dsec.sdk.files import Files as AsyncFiles
from dsec.sdk.sync.file_watch import FileWatch
from dsec.sdk.twin import base as twin

Content = bytes | str | Path | Iterable[bytes]


class Files(twin.Twin[AsyncFiles]):
    """`sandbox.files`. Every method raises NoSuchSandbox, NodeLost and BrokerDown besides what it tells."""

    def read(self, path: str) -> bytes:
        """All of a file. Raises NoSuchFile when there is none, or it is not a regular file."""
        return self._portal.call(self._origin.read(path))

    def read_stream(self, path: str, *, offset: int = 0) -> Iterator[bytes]:
        """A file from byte `offset` on, in chunks. Raises NoSuchFile."""
        return twin.each(self._portal, self._origin.read_stream(path, offset=offset), twin.same)

    def write(self, path: str, data: Content, *, mode: int = 420) -> None:
        """A file with exactly this content; missing parents are made. A Path is a local file, read in chunks.

        Raises NoSuchFile when `path` is a directory or its parent is none, DiskFull, LimitError.
        """
        self._portal.call(self._origin.write(path, twin.fed(data), mode=mode))

    def stat(self, path: str) -> FileInfo:
        """What lies at `path`; a symbolic link is not followed. Raises NoSuchFile."""
        return self._portal.call(self._origin.stat(path))

    def list(self, path: str) -> list[FileInfo]:
        """The entries of a directory, all of them, in the order of their names. Raises NoSuchFile."""
        return self._portal.call(self._origin.list(path))

    def remove(self, path: str, *, recursive: bool = False, key: str | None = None) -> None:
        """Remove a file or link, a directory only with `recursive`; links are not followed. Raises
        NoSuchFile.
        """
        self._portal.call(self._origin.remove(path, recursive=recursive, key=key))

    def mkdir(self, path: str, *, mode: int = 493) -> None:
        """A directory and its missing parents; silent when it is there. Raises NoSuchFile, DiskFull."""
        self._portal.call(self._origin.mkdir(path, mode=mode))

    def symlink(self, path: str, target: str) -> None:
        """A symbolic link at `path`; missing parents are made. Raises NoSuchFile, DiskFull."""
        self._portal.call(self._origin.symlink(path, target))

    def watch(self, path: str, *, recursive: bool = False) -> AbstractContextManager[FileWatch]:
        """Changes below directory `path`, for `with`, from the beginning of the block on; of a file,
        those of its name. They end when `path` itself is gone.

        Each comes at least once. After `overflow` and `restarted` some may be missing: look at what is there.
        Raises NoSuchFile, Unsupported (/proc, /dev, /sys), TooLarge (more than 4,096 directories), LimitError
        (more than 16 watches), SpecError once the sandbox is stopped.
        """
        return twin.block(
            self._portal,
            self._origin.watch(path, recursive=recursive),
            lambda made: FileWatch(self._portal, made),
        )
