"""The base layers, built on this machine by mmdebstrap: `debian-12-python`, a minimal Debian 12 with Python,
and `debian-12-functions`, for stateless calls: with numpy and compilers of C and C++ as well.

Packages come from the Debian sources that the host's own apt uses, other sources of the host are left out.
An image is kept in a cache outside the checkout with its sha256 beside it; it is verified on every use and
built again when it is wrong. `python -m dsec.plugins.images [functions]` builds or verifies one and prints
its path.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

from dsec.bus import threads
from dsec.bus.errors import MissingTool
from dsec.bus.files import sync
from dsec.plugins.images import erofs, tree

NAME: Final = "debian-12-python"
FUNCTIONS: Final = "debian-12-functions"
_SUITE: Final = "bookworm"
_KEYRING: Final = "debian-archive-keyring"
_LINE: Final = re.compile(
    rf"deb\s+(\[[^]]*{_KEYRING}[^]]*\]\s+)?\S+/debian(-security)?/?\s+{_SUITE}(-\S+)?\s+(.*\s)?main\b"
)
_PACKAGES: Final = ("usr-is-merged", "python3", "procps")
"""`usr-is-merged` stands in for `usrmerge`, which would bring all of Perl."""
_MORE: Final = ("python3-numpy", "gcc", "g++", "libc6-dev")
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
    return await _cached(NAME, _PACKAGES, "base.lock", tell)


async def functions_image(tell: Callable[[str], None] = lambda _: None) -> Path:
    """As `base_image`, of the layer for stateless calls (about 60 s)."""
    return await _cached(FUNCTIONS, (*_PACKAGES, *_MORE), "functions.lock", tell)


async def _cached(name: str, packages: Sequence[str], lock: str, tell: Callable[[str], None]) -> Path:
    image = cache() / "images" / f"{name}-{_recipe(packages)}.erofs"
    image.parent.mkdir(parents=True, exist_ok=True)
    async with alone(image.parent / lock):
        if await asyncio.to_thread(_is_sound, image):
            tell(f"{name}: verified, {image.stat().st_size / 1e6:.0f} MB")
        else:
            await _build(image, name, packages, tell)
    return image


def _recipe(packages: Sequence[str]) -> str:
    parts = (_SUITE, *packages, *_UNWANTED, _CLEAN)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


@contextlib.asynccontextmanager
async def alone(lock: Path) -> AsyncIterator[None]:
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


async def _build(image: Path, name: str, packages: Sequence[str], tell: Callable[[str], None]) -> None:
    prefix = f".build-{name}-"
    for leftover in image.parent.glob(f"{prefix}*"):  # of a killed build: this one holds the lock
        await threads.finish(lambda: tree.remove(leftover))  # noqa: B023  (awaited in the loop)
    workshop = Path(tempfile.mkdtemp(prefix=prefix, dir=image.parent))
    try:
        tell(f"{name}: unpacking Debian packages")
        await debootstrap(workshop / "root", packages)
        tell(f"{name}: making the image")
        await erofs.build(workshop / "root", workshop / "image")
        await erofs.verify(workshop / "image")
        await asyncio.to_thread(_publish, workshop / "image", image)
        tell(f"{name}: built, {image.stat().st_size / 1e6:.0f} MB")
    finally:
        await threads.finish(lambda: tree.remove(workshop))


async def debootstrap(root: Path, packages: Sequence[str], hooks: Sequence[str] = ()) -> None:
    """Unpack a minimal Debian 12 with `packages` into `root`; `hooks` are shell commands with `root` as $1.

    Raises MissingTool, DiskFull, InfraError.
    """
    if os.geteuid() != 0:
        raise MissingTool("unpacking Debian packages needs root")
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _UNWANTED]
    await erofs.run(
        "mmdebstrap",
        "--mode=root",
        "--quiet",
        "--variant=essential",
        "--format=directory",
        f"--include={','.join(packages)}",
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        *excluded,
        *(f"--customize-hook={hook}" for hook in (*hooks, _CLEAN)),
        _SUITE,
        str(root),
        *debian_sources(),
        advice="apt-get install mmdebstrap",
    )


def debian_sources(etc: Path = Path("/etc/apt")) -> list[str]:
    """The host's own Debian sources, as mmdebstrap takes them: lines of lists, and whole deb822 files.

    Formats: sources.list(5). Raises MissingTool when there is none.
    """
    directory = etc / "sources.list.d"
    lists = [path for path in (etc / "sources.list", *sorted(directory.glob("*.list"))) if path.is_file()]
    lines = [line for path in lists for line in path.read_text().splitlines() if _LINE.match(line)]
    files = [str(path) for path in sorted(directory.glob("*.sources")) if _is_debian(path.read_text())]
    if not lines + files:
        raise MissingTool(f"no apt source for Debian's {_SUITE} in {etc}; add one to {etc}/sources.list")
    return lines + files


def _is_debian(text: str) -> bool:
    """Whether a deb822 file has the wanted suite, and nothing that others than Debian have signed."""
    fields = [line.split() for line in text.splitlines() if not line.startswith("#")]
    signers = [words[1:] for words in fields if words and words[0].lower() == "signed-by:"]
    suites = [words[1:] for words in fields if words and words[0].lower() == "suites:"]
    return any(_SUITE in words for words in suites) and all(
        words and _KEYRING in words[0] for words in signers or [[]]
    )


def _publish(built: Path, image: Path) -> None:
    """The digest first: a crash in between leaves an image that is built again, never a wrong one."""
    digest = built.with_suffix(".sha256")
    digest.write_text(f"{erofs.sha256(built)}  {image.name}\n")
    sync(digest)
    sync(built)
    digest.replace(_digest_file(image))
    built.replace(image)
    sync(image.parent)
