"""What is checked before a sandbox starts and after: ids, limits, the image, the engine's work."""

from __future__ import annotations

import os
import re
import resource
import stat
import sys
from pathlib import Path
from typing import Final

from dsec.bus.driver import Info
from dsec.bus.errors import InfraError, NoSuchSandbox, Unsupported
from dsec.bus.spec import GIB, MIB, Limits
from dsec.plugins.container import oci

INFO: Final = Info(
    name="container",
    version=1,
    limits=frozenset({"cpu", "memory", "pids", "nofile", "log_bytes"}),
    defaults=Limits(cpu=1.0, memory=GIB, pids=512, nofile=4096, log_bytes=64 * MIB),
)
_SAFE_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,127}")


def safe_id(sandbox: str) -> str:
    """`sandbox`, if it is safe as a name of directories. Raises NoSuchSandbox."""
    if _SAFE_ID.fullmatch(sandbox) is None:
        raise NoSuchSandbox(f"{sandbox!r} is not a sandbox id")
    return sandbox


def possible(limits: Limits) -> int:
    """The descriptor limit to apply. Raises Unsupported for what cannot be enforced here."""
    for name in limits.asked() - INFO.limits:
        raise Unsupported(f"containers do not limit {name}", field=f"limits.{name}")
    nofile = limits.nofile or INFO.defaults.nofile or 0
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if nofile > (most if most != resource.RLIM_INFINITY else sys.maxsize):
        raise Unsupported(f"this node allows {most} descriptors per process", field="limits.nofile")
    if limits.pids is not None and limits.pids > (most := _most_pids()):
        raise Unsupported(f"this node allows {most} processes per sandbox", field="limits.pids")
    if limits.cpu is not None and limits.cpu < 0.01:
        raise Unsupported("the least CPU limit is 0.01 cores", field="limits.cpu")
    return nofile


def _most_pids() -> int:
    """A quarter of the machine's: process ids are one space for all sandboxes and the host."""
    return min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max")) // 4


def executes(pid: int, program: int) -> bool:
    """Whether `pid` has got as far as `program`, an open descriptor. Raises OSError when it has ended."""
    running, wanted = Path(f"/proc/{pid}/exe").stat(), os.fstat(program)
    return (running.st_dev, running.st_ino) == (wanted.st_dev, wanted.st_ino)


def confined(pid: int) -> None:
    """Believe no engine: refuse a PID 1 without a filter, or with the host's /sys, cgroups and all.

    The latter is what crun falls back to where the kernel refuses a new sysfs.
    """
    process = Path(f"/proc/{pid}")
    if b"\nSeccomp:\t2\n" not in (process / "status").read_bytes():
        raise InfraError("the engine started a sandbox without its seccomp filter")
    if b" - cgroup" in (process / "mountinfo").read_bytes():
        raise InfraError("the host's /sys is inside: something is mounted over a part of /sys on this node")


def real_mount_points(root: Path) -> None:
    """Refuse an image that redirects the engine's mounts, and with them its masks, by a symbolic link."""
    if not root.is_dir():
        raise InfraError(f"the root file system {root} is not mounted")
    for name in oci.MOUNT_POINTS:
        point = root / name
        if point.is_symlink() or (point.exists() and not stat.S_ISDIR(point.lstat().st_mode)):
            raise Unsupported(f"/{name} of the image must be a directory", field="image")
