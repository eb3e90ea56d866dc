"""EROFS files: built by mkfs.erofs, checked by fsck.erofs and by their own superblock.

An image built here depends only on the tree: the volume id is fixed, and so is the build time, which is told
through SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/) because mkfs.erofs then
clamps times to it instead of replacing them. Python's `.pyc` files are valid only with their source's time.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import signal
import struct
from pathlib import Path
from typing import Final

from dsec.bus.errors import DiskFull, InfraError, MissingTool, SpecError

_VOLUME: Final = "00000000-0000-4000-8000-000000000000"
_KEEP_TIMES: Final = str(1 << 32)
"""Later than any time of a file, so that none is clamped."""
FIXED_TIME: Final = 1_577_836_800
"""2020-01-01, for trees whose times say nothing; zip files cannot hold times before 1980."""
_MAGIC: Final = 0xE0F5E1E2
_SUPERBLOCK: Final = 1024
_FULL: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), ": Wrote only ")
"""How mkfs.erofs and GNU tar (a short write) tell that the disk is full."""
ADVICE: Final = "apt-get install erofs-utils"


async def build(tree: Path, image: Path, *, keep_times: bool = True) -> None:
    """Write the tree as EROFS file `image`, lz4 compressed; without `keep_times` every time is FIXED_TIME.

    Raises MissingTool, DiskFull, InfraError, and then leaves no file.
    """
    times, epoch = ((), _KEEP_TIMES) if keep_times else ((f"-T{FIXED_TIME}",), None)
    command = ("mkfs.erofs", "--quiet", "-d1", f"-U{_VOLUME}", "-zlz4", *times, str(image), str(tree))
    try:
        await run(*command, advice=ADVICE, epoch=epoch)
    except BaseException:
        image.unlink(missing_ok=True)
        raise


async def verify(image: Path, name: str | None = None) -> None:
    """Read the whole image back. Raises SpecError when `name` is no sound EROFS file, MissingTool."""
    name = name or image.name
    await asyncio.to_thread(check_superblock, image, name)
    try:
        await run("fsck.erofs", "-d1", "--extract", str(image), advice=ADVICE)
    except InfraError as error:
        if type(error) is not InfraError:
            raise
        raise SpecError(f"{name} is damaged: {error.message}") from error


def check_superblock(image: Path, name: str) -> None:
    """Raises SpecError unless the file starts as EROFS and has all blocks that its superblock counts.

    Layout: linux/fs/erofs/erofs_fs.h, struct erofs_super_block.
    """
    with image.open("rb") as file:
        head = file.read(_SUPERBLOCK + 128)
        size = os.fstat(file.fileno()).st_size
    if len(head) < _SUPERBLOCK + 128 or struct.unpack_from("<I", head, _SUPERBLOCK)[0] != _MAGIC:
        raise SpecError(f"{name} is not an EROFS image")
    block_bits, blocks = head[_SUPERBLOCK + 12], struct.unpack_from("<I", head, _SUPERBLOCK + 36)[0]
    if size < blocks << block_bits:
        raise SpecError(f"{name} is cut off: {size} of {blocks << block_bits} bytes")


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def run(*command: str, advice: str, epoch: str | None = None) -> None:
    """Run a program to its end; it is killed when the caller is cancelled. `epoch`: SOURCE_DATE_EPOCH.

    Raises MissingTool telling `advice`, DiskFull, or InfraError with the end of what it wrote to stderr.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(epoch),
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise MissingTool(f"{command[0]} is not installed: {advice}") from error
    try:
        _, complaint = await process.communicate()
    except BaseException:
        await _kill(process)
        raise
    if process.returncode:
        raise _failure(command[0], process.returncode, complaint.decode(errors="replace"))


def _environment(epoch: str | None) -> dict[str, str]:
    """`epoch` overrules -T of mkfs.erofs, so that one of the caller's must not come through."""
    environment = os.environ | {"LC_ALL": "C"}
    environment.pop("SOURCE_DATE_EPOCH", None)
    return environment | ({} if epoch is None else {"SOURCE_DATE_EPOCH": epoch})


async def _kill(process: asyncio.subprocess.Process) -> None:
    """The program and what it started; it leads a process group of its own."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
    await process.communicate()


def _failure(program: str, code: int, complaint: str) -> InfraError:
    tail = " ".join(complaint.split())[-600:] or f"exit status {code}"
    if any(sign in complaint for sign in _FULL):
        return DiskFull(f"{program}: no space left for the image: {tail}")
    return InfraError(f"{program} failed: {tail}")
