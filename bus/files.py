"""Files that must be whole on disk and, where they hold secrets, private."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dsec.bus.errors import DiskFull, InfraError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the kernel says of a disk without room, or of a quota that is used up."""


def write_private(path: Path, text: str) -> None:
    """Replace `path` by `text` with mode 0600: a reader sees the old file or the new one.

    The directory is made with mode 0700 when it is not there. Raises DiskFull, OSError.
    """
    try:
        _replace(path, text)
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(f"no space for {path}: free some on that disk") from error
        raise


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Force a file's bytes, or a directory's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def file_work(what: str) -> Iterator[None]:
    """Within the block an OSError of plain file work becomes DiskFull or InfraError."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(f"{what}: the disk is full ({error})") from error
        raise InfraError.during(what, error) from error
