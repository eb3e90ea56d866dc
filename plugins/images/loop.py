"""Loop devices: how an image file is mounted by a kernel that takes only block devices.

EROFS does so before Linux 6.12.
Format: linux/loop.h, struct loop_config; the call is there from Linux 5.8 on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CONTROL: Final = Path("/dev/loop-control")
_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
_READ_ONLY, _AUTOCLEAR, _DIRECT_IO = 1, 4, 16
_FLAGS: Final = _READ_ONLY | _AUTOCLEAR | _DIRECT_IO
_CONFIG: Final = struct.Struct("=II 52x I 176x 64x")
"""Descriptor, block size (0: the device's own choice), and of struct loop_info64 only the flags."""
_RACES: Final = 100


@contextlib.contextmanager
def attached(file: Path) -> Iterator[Path]:
    """A read-only block device with the content of `file`, gone when nobody has it open or mounted any more.

    The kernel sees to that also when this process is killed. Raises OSError.
    """
    backing = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        path, device = _configured(backing)
    finally:
        os.close(backing)
    try:
        yield path
    finally:
        os.close(device)


def _configured(backing: int) -> tuple[Path, int]:
    """A free device is anybody's until it is configured: whoever comes second takes another."""
    for _ in range(_RACES):
        path = Path(f"/dev/loop{_free()}")
        device = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(device, _CONFIGURE, _CONFIG.pack(backing, 0, _FLAGS))
        except OSError as error:
            os.close(device)
            if error.errno != errno.EBUSY:
                raise
        else:
            return path, device
    raise OSError(errno.EBUSY, "no loop device stays free", str(CONTROL))


def _free() -> int:
    try:
        control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise OSError(errno.ENODEV, "no loop driver", str(CONTROL)) from None
    try:
        return fcntl.ioctl(control, _GET_FREE)
    finally:
        os.close(control)
