"""The base layer `debian-12-python`: a minimal Debian 12 with Python, built on this machine by mmdebstrap.

Packages come from the Debian sources that the host's own apt uses, other sources of the host are left out.
The image is kept in a cache outside the checkout with its sha256 beside it; it is verified on every use and
built again when it is wrong. `python -m dsec.plugins.images.base` builds or verifies it and prints its path.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from dsec.bus.errors import DsecError, MissingTool
from dsec.plugins.images import erofs, tree

NAME: Final = "debian-12-python"
_SUITE: Final = "bookworm"
_KEYRING: Final = "debian-archive-keyring"
_PACKAGES: Final = ("usr-is-merged", "python3", "procps")
"""`usr-is-merged` stands in for `usrmerge`, which would bring all of Perl."""
_UNWANTED: Final = ("man", "doc", "info", "locale", "lintian", "i18n", "bash-completion")
_CLEAN: Final = """set -e; cd "$1"
rm -rf etc/apt/sources.list.d/* etc/apt/apt.conf.d/99mmdebstrap etc/dpkg/dpkg.cfg.d/99mmdebstrap var/log/* \
  var/cache/debconf/*-old var/lib/dpkg/*-old
echo sandbox > etc/hostname; : > etc/resolv.conf
printf '127.0.0.1 localhost sandbox\\n::1 localhost\\n' > etc/hosts"""
"""Names of the host and of its mirror stay out of the image."""


def cache() -> Path:
    """Where built files are kept: `$DSEC_CACHE`, or `~/.cache/opendsec`."""
    return Path(os.environ.get("DSEC_CACHE") or Path.home() / ".cache" / "opendsec")


async def base_image(tell: Callable[[str], None] = lambda _: None) -> Path:
    """The verified EROFS file of the base layer, built on first use (about 20 s); `tell` gets progress lines.

    Raises MissingTool, DiskFull, InfraError.
    """
    image = cache() / "images" / f"{NAME}-{_recipe()}.erofs"
    image.parent.mkdir(parents=True, exist_ok=True)
    async with _alone(image.with_suffix(".lock")):
        if await asyncio.to_thread(_is_sound, image):
            tell(f"{NAME}: verified, {image.stat().st_size / 1e6:.0f} MB")
        else:
            await _build(image, tell)
    return image


def _recipe() -> str:
    parts = (_SUITE, *_PACKAGES, *_UNWANTED, _CLEAN)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


@contextlib.asynccontextmanager
async def _alone(lock: Path) -> AsyncIterator[None]:
    """One builder at a time, over all processes of the machine."""
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.2)
        yield


def _is_sound(image: Path) -> bool:
    try:
        return _digest_file(image).read_text().split()[0] == erofs.sha256(image)
    except (FileNotFoundError, IndexError):
        return False


def _digest_file(image: Path) -> Path:
    return image.with_suffix(".sha256")


async def _build(image: Path, tell: Callable[[str], None]) -> None:
    workshop = Path(tempfile.mkdtemp(prefix=".build-", dir=image.parent))
    try:
        tell(f"{NAME}: unpacking Debian packages (about 20 s)")
        await _debootstrap(workshop / "root")
        tell(f"{NAME}: making the image")
        await erofs.build(workshop / "root", workshop / "image")
        await erofs.verify(workshop / "image")
        await asyncio.to_thread(_publish, workshop / "image", image)
        tell(f"{NAME}: built, {image.stat().st_size / 1e6:.0f} MB")
    finally:
        await asyncio.to_thread(tree.remove, workshop)


async def _debootstrap(root: Path) -> None:
    if os.geteuid() != 0:
        raise MissingTool("building the base layer needs root")
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _UNWANTED]
    await erofs.run(
        "mmdebstrap",
        "--mode=root",
        "--quiet",
        "--variant=essential",
        "--format=directory",
        f"--include={','.join(_PACKAGES)}",
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        *excluded,
        f"--customize-hook={_CLEAN}",
        _SUITE,
        str(root),
        *map(str, debian_sources()),
        advice="apt-get install mmdebstrap",
    )


def debian_sources(etc: Path = Path("/etc/apt")) -> list[Path]:
    """The host's apt source files that are Debian's own. Raises MissingTool when there is none."""
    candidates = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    found = [path for path in candidates if path.is_file() and _is_debian(path.read_text())]
    if not found:
        raise MissingTool(f"no apt source for Debian's {_SUITE} in {etc}; add one to {etc}/sources.list")
    return found


def _is_debian(text: str) -> bool:
    """Whether a source file is for the wanted suite and signed by Debian's keys, or names no key at all."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    signers = [line.lower() for line in lines if "signed-by" in line.lower()]
    return any(_SUITE in line.split() for line in lines) and all(_KEYRING in line for line in signers)


def _publish(built: Path, image: Path) -> None:
    """The digest first: a crash in between leaves an image that is built again, never a wrong one."""
    digest = built.with_suffix(".sha256")
    digest.write_text(f"{erofs.sha256(built)}  {image.name}\n")
    tree.sync(digest)
    tree.sync(built)
    digest.replace(_digest_file(image))
    built.replace(image)
    tree.sync(image.parent)


def main() -> int:
    """Build or verify; progress on stderr, the path on stdout."""
    try:
        image = asyncio.run(base_image(lambda line: print(line, file=sys.stderr)))  # noqa: T201  (a command)
    except DsecError as error:
        print(f"{NAME}: {error.message}", file=sys.stderr)  # noqa: T201  (a command)
        return 1
    print(image)  # noqa: T201  (a command's answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
