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
from dsec.plugins.images import erofs, kernel, problems, rootfs

_ATTRIBUTES: Final = 0x01 | 0x02 | 0x04  # read-only, nosuid, nodev: what a layer holds is not for the host
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")


class LayerMounts:
    """`file` tells where a layer's EROFS file is."""

    def __init__(self, directory: Path, file: Callable[[str], Path]) -> None:
        self._directory = directory
        self._file = file
        self._mounting: dict[str, asyncio.Task[None]] = {}
        self._mounted: set[str] = set()

    def open(self) -> None:
        """Blocking: take over the mounts of a former process, and drop directories that have none."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        mounted = mount_points(Path("/proc/self/mountinfo").read_bytes())
        for point in self._directory.iterdir():
            if mounted.get(os.fsencode(point.resolve())) == b"erofs":
                self._mounted.add(point.name)
            else:
                rootfs.unmount(point)
                point.rmdir()

    async def mount(self, digests: Iterable[str]) -> list[Path]:
        """Mount points of these layers, in this order. Raises MissingTool, InfraError."""
        wanted = list(digests)
        for digest in wanted:
            while digest not in self._mounted:
                await self._mount_once(digest)
        return [self._directory / digest for digest in wanted]

    async def drop(self, used: frozenset[str]) -> None:
        """Unmount all layers but those in `used`."""
        for digest in self._mounted - used:
            await self.drop_one(digest)

    async def drop_one(self, digest: str) -> None:
        """Unmount this layer, if it is mounted."""
        if digest in self._mounted:
            self._mounted.discard(digest)
            await asyncio.to_thread(self._unmount, digest)

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
        _check_file(file)
        with problems.files("making a mount point"):
            point.mkdir(mode=0o700, exist_ok=True)
        try:
            with problems.mounts(f"mounting layer {digest[:12]}"), contextlib.ExitStack() as held:
                context = kernel.FsContext("erofs")
                held.callback(context.close)
                context.text("source", file)
                mount = context.mount(_ATTRIBUTES)
                held.callback(os.close, mount)
                kernel.attach(mount, point)
        except BaseException:
            point.rmdir()
            raise

    def _unmount(self, digest: str) -> None:
        with problems.files(f"unmounting layer {digest[:12]}"):
            rootfs.unmount(self._directory / digest)
            (self._directory / digest).rmdir()


def _check_file(file: Path) -> None:
    try:
        erofs.check_superblock(file)
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
