"""Mounts of layers: each once per host, at `mnt/<sha256>`, shared by all sandboxes as a lower directory.

One EROFS mount per sandbox would give each its own page cache of the same file. A mount outlives the process
that made it; the next one recognises it in mountinfo and goes on using it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from dsec.bus.errors import InfraError, SpecError
from dsec.bus.files import file_work
from dsec.plugins.images import erofs, kernel, loop, problems, rootfs

_ATTRIBUTES: Final = 0x01 | 0x02 | 0x04  # read-only, nosuid, nodev: what a layer holds is not for the host
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")


class LayerMounts:
    """`file` tells where a layer's EROFS file is."""

    def __init__(self, directory: Path, file: Callable[[str], Path]) -> None:
        self._directory = directory
        self._file = file
        self._mounting: dict[str, asyncio.Task[None]] = {}
        self._mounted: set[str] = set()
        self._takes_files = kernel.version() >= kernel.FILE_BACKED

    async def mount(self, digests: Iterable[str]) -> list[Path]:
        """Mount points of these layers, in this order. Raises MissingTool, InfraError."""
        wanted = list(digests)
        for digest in wanted:
            while digest not in self._mounted:
                await self._mount_once(digest)
        return [self._directory / digest for digest in wanted]

    def drop(self, used: frozenset[str]) -> None:
        """Blocking: unmount all layers but those in `used`, also those that a former process mounted."""
        with file_work("unmounting layers"):
            for point in set(self._directory.glob("*")):
                if point.name not in used:
                    self._mounted.discard(point.name)
                    rootfs.unmount(point)
                    point.rmdir()

    async def _mount_once(self, digest: str) -> None:
        """Callers that want the same layer wait for one mount; a cancelled one does not stop it."""
        task = self._mounting.get(digest)
        if task is None:
            task = self._mounting[digest] = asyncio.create_task(asyncio.to_thread(self._mount, digest))
            task.add_done_callback(lambda _: self._mounting.pop(digest))
        await asyncio.shield(task)
        self._mounted.add(digest)

    def _mount(self, digest: str) -> None:
        point, file = self._directory / digest, self._file(digest)
        if _is_erofs(point):
            return
        _check_file(file)
        with file_work("making a mount point"):
            self._directory.mkdir(mode=0o700, exist_ok=True)
            point.mkdir(mode=0o700, exist_ok=True)
        try:
            with problems.mounts(f"mounting layer {digest[:12]}"), contextlib.ExitStack() as held:
                context = kernel.FsContext("erofs")
                held.callback(context.close)
                source = file if self._takes_files else held.enter_context(loop.attached(file))
                context.text("source", source)
                context.flag("ro")
                mount = context.mount(_ATTRIBUTES)
                held.callback(os.close, mount)
                kernel.attach(mount, point)
        except BaseException:
            point.rmdir()
            raise


def _is_erofs(point: Path) -> bool:
    """Whether a former process has mounted the layer already."""
    if not point.is_mount():
        return False
    mounted = mount_points(Path("/proc/self/mountinfo").read_bytes())
    return mounted.get(os.fsencode(point.resolve())) == b"erofs"


def _check_file(file: Path) -> None:
    try:
        erofs.check_superblock(file, file.name)
    except (FileNotFoundError, SpecError) as error:
        raise InfraError(f"layer file {file} is gone or damaged, import it again: {error}") from error


def mount_points(mountinfo: bytes) -> dict[bytes, bytes]:
    """Mount point to file system type; of several on one point, the topmost.

    Format: proc_pid_mountinfo(5); blanks and backslashes in paths are octal escapes.
    """
    found = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(b" - ")
        path = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), before.split(b" ")[4])
        found[path] = after.split(b" ")[0]
    return found
