"""Whether a machine can build and compose layers: programs, kernel, rights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dsec.bus.errors import MissingTool
from dsec.plugins.images import erofs, kernel, loop

_KERNEL: Final = (5, 19)
"""overlayfs takes idmapped layers from here on."""
_CAP_SYS_ADMIN: Final = 21


async def check() -> None:
    """Raises MissingTool telling what to install or enable."""
    for program in ("mkfs.erofs", "fsck.erofs"):
        await erofs.run(program, "--help", advice=erofs.ADVICE)
    check_kernel(os.uname().release, Path("/proc/filesystems").read_text())
    check_loop(os.uname().release, loop.CONTROL)
    check_rights(Path("/proc/self/status").read_text())


def check_kernel(release: str, filesystems: str) -> None:
    """`release` of uname(2), `filesystems` as in proc_filesystems(5)."""
    if kernel.version(release) < _KERNEL:
        raise MissingTool(f"Linux {release} is too old to compose layers: 5.19 or later is needed")
    if missing := " ".join(sorted({"erofs", "overlay"}.difference(filesystems.split()))):
        raise MissingTool(f"the kernel has no {missing}: modprobe -a {missing}")


def check_loop(release: str, control: Path) -> None:
    """`control`: where the loop driver takes requests, when it is there."""
    if kernel.version(release) < kernel.FILE_BACKED and not control.exists():
        raise MissingTool(f"Linux {release} mounts layers through loop devices: modprobe loop")


def check_rights(status: str) -> None:
    """`status` as in proc_pid_status(5)."""
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    if not effective >> _CAP_SYS_ADMIN & 1:
        raise MissingTool("mounting layers needs CAP_SYS_ADMIN: run the node as root")
