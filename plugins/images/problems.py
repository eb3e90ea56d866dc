"""What the kernel says, as an error that says what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from dsec.bus.errors import InfraError, MissingTool
from dsec.bus.files import FULL

_MISSING = {
    errno.EPERM: "the node needs root with CAP_SYS_ADMIN",
    errno.EACCES: "the node needs root with CAP_SYS_ADMIN",
    errno.ENOSYS: "this kernel is too old: 5.19 or later is needed",
    errno.ENODEV: "this kernel has no erofs, overlay or loop: modprobe -a erofs overlay loop",
    errno.ENOTBLK: "layers cannot be mounted from there: put the node's home on ext4 or xfs",
    errno.EINVAL: "Linux 5.19 or later is needed, with the node's home on ext4 or xfs",
}


@contextlib.contextmanager
def mounts(what: str) -> Iterator[None]:
    """Within the block an OSError of mounting becomes MissingTool or InfraError."""
    try:
        yield
    except OSError as error:
        if error.errno in _MISSING:
            raise MissingTool(f"{what}: {_MISSING[error.errno]} ({error})") from error
        if error.errno in FULL:
            limits = "user.max_user_namespaces or fs.mount-max is reached"
            raise InfraError(f"{what}: {limits} ({error})") from error
        raise InfraError.during(what, error) from error
