"""A full disk as a typed error."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from dsec.bus.errors import DiskFull


@contextlib.contextmanager
def room_for(what: str) -> Iterator[None]:
    """Raises DiskFull instead of ENOSPC and EDQUOT; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFull(f"the node has no room for {what}") from error
        raise
