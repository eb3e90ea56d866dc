"""Small files that must be whole and, where they hold secrets, private."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from dsec.bus.errors import DiskFull


def write_private(path: Path, text: str) -> None:
    """Replace `path` by `text` with mode 0600: a reader sees the old file or the new one.

    The directory is made with mode 0700 when it is not there. Raises DiskFull, OSError.
    """
    try:
        _replace(path, text)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
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
