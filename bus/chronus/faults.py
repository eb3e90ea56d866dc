"""An errno from the inside as the error that tells its caller what to do.

Nothing is a retryable `infra` by the inside's word alone, except that it could not join its cgroup.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from dsec.bus.chronus.protocol import Stage
from dsec.bus.errors import (
    AgentCrippled,
    Conflict,
    DsecError,
    InfraError,
    LimitError,
    NoSuchFile,
    NoSuchProgram,
    PolicyError,
    TooLarge,
)

SCARCE: Final = frozenset(
    {
        errno.EAGAIN,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EINTR,
    }
)
REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.ETXTBSY})
BROKEN: Final = frozenset({errno.EPROTO, errno.EPROTONOSUPPORT, errno.ENOSYS})


def explain(number: int) -> str:
    return os.strerror(number) if 0 < number < 4096 else f"error {number}"


def start_fault(number: int, stage: int, argv0: str, cwd: str, user: str) -> DsecError:
    """Why a command did not start."""
    why = explain(number)
    if number == errno.EMSGSIZE:
        return TooLarge(f"{argv0}: arguments and environment are too long; pass them in a file", field="argv")
    if stage == Stage.USER and number not in SCARCE:
        return NoSuchProgram(f"user {user!r} cannot be taken inside: {why}", field="user")
    if stage == Stage.CWD and number not in SCARCE:
        return NoSuchProgram(f"cwd {cwd!r}: {why}", field="cwd")
    if stage == Stage.EXEC and number not in SCARCE:
        return NoSuchProgram(f"{argv0!r} cannot be executed: {why}", field="argv")
    if stage == Stage.CGROUP:
        return InfraError(f"joining the cgroup of the command failed: {why}")
    return _other(number, f"starting {argv0!r}")


def file_fault(number: int, path: str) -> DsecError:
    """Why a file operation failed."""
    why = explain(number)
    if number in REFUSED:
        return PolicyError(f"{path}: {why}", field="path")
    if number in SCARCE or number in BROKEN:
        return _other(number, path)
    if number == errno.EINVAL:
        why = "not a regular file"
    return NoSuchFile(f"{path}: {why}", field="path")


def _other(number: int, what: str) -> DsecError:
    if number == errno.EEXIST:
        return Conflict(f"{what}: there is an exec of that id already; attach to it")
    if number in SCARCE:
        return LimitError(f"{what}: {explain(number)}: a limit of the sandbox was hit")
    return AgentCrippled(f"{what}: the agent inside answered {explain(number)}")
