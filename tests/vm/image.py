"""The guest: a root file system, a kernel and an initramfs, made from Debian packages on this machine.

    <cache>/vm-<recipe>/root.erofs    Debian 12 with what a node needs, and the kernel's modules
                        kernel        of `linux-image-cloud-amd64`, unpacked, never installed
                        initramfs     what finds the root
                        SHA256SUMS    verified at each use; made again when something is wrong

Packages come from the Debian sources that the host's own apt uses.
"""

from __future__ import annotations

import asyncio
import hashlib
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsec.bus import threads
from dsec.bus.errors import InfraError
from dsec.plugins.images import erofs, tree
from dsec.plugins.images.base import alone, cache, debootstrap
from tests.vm import cpio

HERE: Final = Path(__file__).parent
PACKAGES: Final = (
    *(
        "usr-is-merged",
        "busybox-static",
        "kmod",
        "iproute2",
        "e2fsprogs",
        "procps",
        "util-linux",
        "mount",
        "python3",
    ),
    *("crun", "runc", "bubblewrap", "erofs-utils", "apparmor"),
)
EARLY: Final = ("virtio_pci", "virtio_blk", "virtio_console", "virtio_rng", "erofs", "overlay")
"""Modules without which there is no root; the others are on it."""
_KERNEL: Final = "linux-image-cloud-amd64"
_UNPACK_KERNEL: Final = f"""set -e; cd "$1/boot"; export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
apt-get download -qq "$(apt-cache depends {_KERNEL} | sed -n 's/.*Depends: //p')"
dpkg-deb --fsys-tarfile ./*.deb | tar -x --keep-directory-symlink -C "$1"
rm ./*.deb; mv vmlinuz-* kernel; rm -f config-* System.map-*
chroot "$1" depmod "$(ls "$1/usr/lib/modules")" """
"""apt of the build, not of the host; tar, because dpkg-deb puts a directory in place of the link /lib."""
_APPLETS: Final = ("sh", "cat", "cp", "insmod", "mkdir", "mount", "switch_root")
_SUMS: Final = "SHA256SUMS"


@dataclass(frozen=True, slots=True)
class Guest:
    """The files of one made guest."""

    directory: Path

    @property
    def root(self) -> Path:
        return self.directory / "root.erofs"

    @property
    def kernel(self) -> Path:
        return self.directory / "kernel"

    @property
    def initramfs(self) -> Path:
        return self.directory / "initramfs"

    @property
    def files(self) -> tuple[Path, ...]:
        return self.root, self.kernel, self.initramfs

    def is_sound(self) -> bool:
        """Whether all files are there as they were made."""
        try:
            return (self.directory / _SUMS).read_text() == self.sums()
        except FileNotFoundError:
            return False

    def sums(self) -> str:
        return "".join(f"{erofs.sha256(file)}  {file.name}\n" for file in self.files)


def present() -> Guest:
    """Where the guest of this recipe is, made or not."""
    early = (HERE / "init.sh").read_text()
    parts = (*PACKAGES, *EARLY, *_APPLETS, _KERNEL, _UNPACK_KERNEL, early)
    recipe = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return Guest(cache() / f"vm-{recipe}")


async def guest(tell: Callable[[str], None] = lambda _: None) -> Guest:
    """The verified guest, made on first use (about 40 s); `tell` gets progress lines.

    Raises MissingTool, DiskFull, InfraError.
    """
    made = present()
    made.directory.parent.mkdir(parents=True, exist_ok=True)
    async with alone(made.directory.parent / "vm.lock"):
        if not await asyncio.to_thread(made.is_sound):
            await _make(made, tell)
    return made


async def _make(made: Guest, tell: Callable[[str], None]) -> None:
    for leftover in made.directory.parent.glob(".vm-*"):  # of a killed build: this one holds the lock
        await threads.finish(lambda: tree.remove(leftover))  # noqa: B023  (awaited in the loop)
    workshop = Path(tempfile.mkdtemp(prefix=".vm-", dir=made.directory.parent))
    try:
        tell("guest: unpacking Debian packages (about 40 s)")
        await debootstrap(workshop / "root", PACKAGES, (_UNPACK_KERNEL,))
        await _assemble(workshop / "root", Guest(workshop))
        await threads.finish(lambda: tree.remove(made.directory))
        workshop.rename(made.directory)
        tell(f"guest: made, {sum(file.stat().st_size for file in made.files) / 1e6:.0f} MB")
    finally:
        await threads.finish(lambda: tree.remove(workshop))


async def _assemble(root: Path, new: Guest) -> None:
    (root / "boot" / "kernel").rename(new.kernel)
    new.initramfs.write_bytes(await asyncio.to_thread(lambda: cpio.archive(_first_files(root))))
    await erofs.build(root, new.root)
    await erofs.verify(new.root)
    await threads.finish(lambda: tree.remove(root))
    (new.directory / _SUMS).write_text(await asyncio.to_thread(new.sums))


def _first_files(root: Path) -> Iterator[cpio.Entry]:
    """The initramfs: busybox, the modules in the order in which they go in, the script."""
    for name in ("bin", "dev", "modules", "root", "lower", "scratch"):
        yield cpio.directory(name)
    yield cpio.Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    yield cpio.file("bin/busybox", (root / "bin/busybox").read_bytes(), 0o755)
    yield from (cpio.link(f"bin/{applet}", "busybox") for applet in _APPLETS)
    modules = _modules(root)
    yield from (cpio.file(f"modules/{module.name}", module.read_bytes()) for module in modules)
    yield cpio.file("modules/order", "\n".join(module.name for module in modules).encode())
    yield cpio.file("init", (HERE / "init.sh").read_bytes(), 0o755)


def _modules(root: Path) -> list[Path]:
    """The early modules and what they need, each once, needed ones first. Raises InfraError."""
    (release,) = (root / "usr/lib/modules").iterdir()
    asked = ["chroot", str(root), "modprobe", "-S", release.name, "--show-depends", "-a", *EARLY]
    told = subprocess.run(asked, check=False, capture_output=True, text=True)
    if told.returncode:
        raise InfraError(f"the guest's kernel lacks a module: {told.stderr.strip()}")
    lines = (line.split() for line in told.stdout.splitlines())
    return [
        root / path.lstrip("/") for path in dict.fromkeys(line[1] for line in lines if line[0] == "insmod")
    ]
