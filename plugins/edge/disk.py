"""A full disk as a typed error, and as no half-written records."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from dsec.bus.errors import DiskFull
from dsec.bus.files import FULL


@contextlib.contextmanager
def room_for(what: str) -> Iterator[None]:
    """Raises DiskFull instead of ENOSPC and EDQUOT; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(f"the node has no room for {what}") from error
        raise


def append_whole(file: int, data: bytes, what: str) -> None:
    """Append all of `data` to a file opened for appending, or nothing of it. Raises DiskFull."""
    before = os.fstat(file).st_size
    with room_for(what):
        if os.write(file, data) < len(data):
            os.ftruncate(file, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
