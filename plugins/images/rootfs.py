"""Root file systems: an overlay of shared layers under a writable layer, with the owners of a user namespace.

    sandboxes/<id>/composition.json   which layers, which ids
                   rootfs/            the mounted overlay
                   data/upper, work   the writable layer; only root passes `data`, for a set-uid file that the
                                      inside made as its root is owned by the host's root in there

Each layer, and `data`, is cloned and idmapped by itself, the merged overlay cannot be. Owners in `upper` are
thereby ids of the inside. The overlay is made as the inside's root (setfsuid): otherwise overlayfs cannot
make its work directory (EOVERFLOW). Descriptors stay open until the file system exists. Kernels before 6.13
want the clones attached: they are stacked at `stage` meanwhile, where nobody else looks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from dsec.bus.driver import Rootfs
from dsec.bus.errors import Conflict, NoSuchSandbox
from dsec.bus.files import file_work
from dsec.plugins.images import kernel, problems, tree
from dsec.plugins.images.ranges import Namespaces

_OPTIONS: Final = {
    "index": "off",
    "metacopy": "off",
    "redirect_dir": "nofollow",
    "xino": "off",
    "uuid": "null" if kernel.version() >= kernel.UUID_NULL else "off",
}
"""What a packed layer relies on: an upper file is whole, and refers to nothing below by name."""
_BUSY_WAITS: Final = (0.002, 0.01, 0.05, 0.2, 0.5)


class Composition(BaseModel):
    """What a later process must know to mount the same again."""

    layers: tuple[str, ...]
    """Digests, bottom first."""
    uid_base: int
    volatile: bool


class Place:
    """The directory of one sandbox. Blocking; every method may be repeated."""

    def __init__(self, sandboxes: Path, sandbox: str, namespaces: Namespaces) -> None:
        self.sandbox = sandbox
        self._namespaces = namespaces
        self.directory = sandboxes / sandbox
        self.target = self.directory / "rootfs"
        self.data = self.directory / "data"
        self.upper = self.data / "upper"
        self._work = self.data / "work"
        self._stage = self.directory / "stage"
        self._composition = self.directory / "composition.json"

    def compose(self, composition: Composition, layers: Sequence[Path]) -> Rootfs:
        """Mount with a fresh writable layer; `layers` are mount points, bottom first.

        Raises Conflict, DiskFull, MissingTool, InfraError, and then leaves nothing.
        """
        with file_work(f"making the directories of {self.sandbox}"):
            try:
                self.directory.mkdir(mode=0o711)
            except FileExistsError:
                raise Conflict(f"{self.sandbox} has a root file system already") from None
        try:
            self._furnish(composition)
            self._mount(composition, layers)
        except BaseException:
            self._undo()
            raise
        return self._rootfs(composition)

    def composition(self) -> Composition:
        """Raises NoSuchSandbox, also when a crash came before it was whole."""
        try:
            return Composition.model_validate_json(self._composition.read_bytes())
        except (FileNotFoundError, ValueError):
            raise NoSuchSandbox(f"{self.sandbox} has no root file system on this node") from None

    def recover(self, layers: Sequence[Path]) -> Rootfs:
        """As it is, or mounted again over the same writable layer (after a restart of the machine)."""
        composition = self.composition()
        if not self.target.is_mount():
            # A volatile overlay leaves a mark in `work` that forbids another mount; nothing else is in there.
            with file_work(f"cleaning the work directory of {self.sandbox}"):
                tree.remove(self._work)
                self._work.mkdir(mode=0o700)
            self._mount(composition, layers)
        return self._rootfs(composition)

    def release(self) -> None:
        """Unmount and delete everything; silent for what never was."""
        with file_work(f"deleting the writable layer of {self.sandbox}"):
            unmount(self.target)
            self._unstage()
            tree.remove(self.directory)

    def _undo(self) -> None:
        """As release, but where no descriptor can be had either: what was made here is known by name."""
        with contextlib.suppress(OSError):
            unmount(self.target)
            self._composition.unlink(missing_ok=True)
            for directory in (self._work, self.upper, self.data, self.target, self.directory):
                with contextlib.suppress(FileNotFoundError):
                    directory.rmdir()
            return
        self.release()

    def _rootfs(self, composition: Composition) -> Rootfs:
        return Rootfs(path=self.target, upper=self.upper, uid_base=composition.uid_base)

    def _furnish(self, composition: Composition) -> None:
        with file_work(f"making the directories of {self.sandbox}"):
            self.data.mkdir(mode=0o700)
            for directory in (self.target, self.upper, self._work):
                directory.mkdir()
            self.upper.chmod(0o755)  # the root directory inside, whatever this process's umask is
            self.directory.chmod(0o711)
            self._composition.write_text(composition.model_dump_json())

    def _mount(self, composition: Composition, layers: Sequence[Path]) -> None:
        base = composition.uid_base
        with (
            problems.mounts(f"mounting the root file system of {self.sandbox}"),
            contextlib.ExitStack() as held,
        ):
            userns = self._namespaces.get(base)
            lowers = [_clone(held, layer, userns) for layer in reversed(layers)]
            data = _clone(held, self.data, userns, readonly=False)
            upper, work = (_directory(held, data, name) for name in ("upper", "work"))
            if kernel.version() >= kernel.DESCRIPTORS:
                with kernel.acting_as(base):
                    mount = _overlay(held, lowers, upper, work, volatile=composition.volatile)
                kernel.attach(mount, self.target)
                return
            held.callback(self._unstage)
            self._stage_all(lowers, data)
            options = _joined(lowers, upper, work, volatile=composition.volatile)
            with kernel.acting_as(base):
                kernel.mount("overlay", self.target, kernel.MOUNT_NODEV, options)

    def _stage_all(self, lowers: Sequence[int], data: int) -> None:
        self._unstage()
        self._stage.mkdir()
        for clone in (*lowers, data):
            kernel.attach(clone, self._stage)

    def _unstage(self) -> None:
        """Repeatable; also what a killed node left."""
        if self._stage.exists():
            with contextlib.suppress(OSError):  # EINVAL: nothing is attached any more
                while True:
                    kernel.unmount(self._stage, kernel.MNT_DETACH)
            self._stage.rmdir()


def _clone(held: contextlib.ExitStack, path: Path, userns: int, *, readonly: bool = True) -> int:
    clone = kernel.idmapped_clone(path, userns, readonly=readonly)
    held.callback(os.close, clone)
    return clone


def _directory(held: contextlib.ExitStack, parent: int, name: str) -> int:
    found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    held.callback(os.close, found)
    return found


def _overlay(
    held: contextlib.ExitStack, lowers: Sequence[int], upper: int, work: int, *, volatile: bool
) -> int:
    """Descriptor of the detached overlay; `lowers` top first."""
    context = kernel.FsContext("overlay")
    held.callback(context.close)
    for lower in lowers:
        context.descriptor("lowerdir+", lower)
    context.descriptor("upperdir", upper)
    context.descriptor("workdir", work)
    for key, value in _OPTIONS.items():
        context.text(key, value)
    if volatile:
        context.flag("volatile")
    mount = context.mount(kernel.MOUNT_NODEV)
    held.callback(os.close, mount)
    return mount


def _joined(lowers: Sequence[int], upper: int, work: int, *, volatile: bool) -> str:
    """The same as text; links of /proc are short and need no escapes, a page has room for 200 layers."""
    here = "/proc/self/fd"
    places = {
        "lowerdir": ":".join(f"{here}/{lower}" for lower in lowers),
        "upperdir": f"{here}/{upper}",
        "workdir": f"{here}/{work}",
    }
    settings = [f"{key}={value}" for key, value in (places | _OPTIONS).items()]
    return ",".join([*settings, "volatile"] if volatile else settings)


def unmount(target: Path) -> None:
    """Unmount whatever is mounted at `target`, silent when nothing is.

    Processes that end take a moment to let go; a mount that stays busy is detached, and ends with its users.
    """
    waits = iter(_BUSY_WAITS)
    while True:
        try:
            kernel.unmount(target)
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.ENOENT}:
                return
            if error.errno != errno.EBUSY:
                raise
            if (wait := next(waits, None)) is None:
                kernel.unmount(target, kernel.MNT_DETACH)
            else:
                time.sleep(wait)
