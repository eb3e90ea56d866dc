"""Errors of files, in the words of the platform."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from dsec.bus.errors import DiskFull, InfraError


@contextlib.contextmanager
def files(what: str) -> Iterator[None]:
    """OSError in the block is DiskFull or InfraError."""
    try:
        yield
    except OSError as error:
        kind = DiskFull if error.errno in {errno.ENOSPC, errno.EDQUOT} else InfraError
        raise kind.during(what, error) from error
