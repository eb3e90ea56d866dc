"""What a run brings into the guest: the checkout with its virtual environment, the base image, the job.

Nothing here has a name in a directory: files that a killed run could leave do not exist.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsec.bus.chronus.build import binary
from dsec.bus.errors import InfraError, MissingTool
from dsec.plugins.fncall.build import binary as calls_binary
from dsec.plugins.images import erofs
from dsec.plugins.images.base import base_image, cache
from tests.vm import cpio
from tests.vm.image import HERE

CHECKOUT: Final = HERE.parent.parent
LATE: Final = ("loop", "fuse", "veth", "tun", "nf_tables", "ext4", "zram")
"""Modules that a node's machine has loaded, or loads as its root asks; no test has to."""
_PYTHON: Final = (3, 11)
LEFT_AT_HOME: Final = (
    r"^\.git$",
    r"^build$",
    r"^\.(mypy|ruff|pytest)_cache$",
    r"^\.hypothesis$",
    r"^\.venv/bin/(ruff|py-spy)$",
    r"^\.venv/lib/python3[^/]*/site-packages/(aiohttp|mypy|mypyc|pip|setuptools|virtualenv|.*__mypyc.*)$",
)
"""nats imports aiohttp where it is there: a sixth of all that a `dsec` process imports, and unused."""


def nameless(size: int = 0) -> int:
    """Descriptor of a sparse file without a name, on the disk of the cache; gone when nobody has it open."""
    directory = cache()
    directory.mkdir(parents=True, exist_ok=True)
    file = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    os.truncate(file, size)
    return file


def path_of(descriptor: int) -> str:
    """A path of the open file, good in this process and for its children while it is open here."""
    return f"/proc/{os.getpid()}/fd/{descriptor}"


@dataclass(frozen=True, slots=True)
class Job:
    """`command` is run in the guest's checkout; what it writes to `report` comes back.

    `environment` is added to the guest's. `base`: also bring the base image and chronus, as `make setup` has
    them.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    base: bool = True


REPORT: Final = "/scratch/report"
PYTHON: Final = str(CHECKOUT / ".venv/bin/python")


async def pack_checkout() -> int:
    """Descriptor of an EROFS image of the checkout and its virtual environment.

    Raises MissingTool, DiskFull, InfraError.
    """
    if sys.version_info[:2] != _PYTHON:
        raise MissingTool("the guest has Python 3.11, so the virtual environment must be made with it")
    await compile_sources()
    image = nameless()
    try:
        excluded = [f"--exclude-regex={pattern}" for pattern in LEFT_AT_HOME]
        command = ("mkfs.erofs", "--quiet", "-d0", *excluded, path_of(image), str(CHECKOUT))
        await erofs.run(*command, advice=erofs.ADVICE, epoch=str(1 << 32))
    except BaseException:
        os.close(image)
        raise
    return image


async def compile_sources() -> None:
    """Bytecode beside the sources, as imports leave it: in the guest it takes seconds a process."""
    folders = [str(CHECKOUT / name) for name in ("bus", "plugins", "sdk", "benchmarks", "tests")]
    with contextlib.suppress(InfraError):  # a file that does not compile is told where it is imported
        await erofs.run(sys.executable, "-m", "compileall", "-q", *folders, advice="Python is gone")


async def pack_job(job: Job) -> tuple[bytes, Path | None]:
    """An archive for the end of the initramfs, and the base image's file if it is wanted."""
    image = await base_image() if job.base else None
    entries = [
        cpio.directory("job"),
        cpio.file("job/guest", (HERE / "guest.sh").read_bytes()),
        cpio.file("job/modules", " ".join(LATE).encode()),
        cpio.file("job/prepare", _prepare(image).encode()),
        cpio.file("job/command", _script(job).encode()),
    ]
    if image is not None:
        programs = (binary(), calls_binary())
        entries += [cpio.file(f"job/{made.name}", made.read_bytes(), 0o755) for made in programs]
        entries.append(cpio.file("job/base.sha256", image.with_suffix(".sha256").read_bytes()))
    return cpio.archive(entries), image


def _prepare(image: Path | None) -> str:
    """The checkout where it is on the host, writable, with the guest's Python; the cache of a set-up host."""
    here = shlex.quote(str(CHECKOUT))
    layers = "lowerdir=/cargo,upperdir=/scratch/checkout,workdir=/scratch/checkout.work"
    lines = [
        "set -e; mkdir -p /cargo /scratch/checkout /scratch/checkout.work " + here,
        "mount -t erofs -o ro /dev/vdc /cargo",
        f"mount -t overlay -o {layers} checkout {here}",
        f"cd {here}",
        "ln -sf /usr/bin/python3.11 .venv/bin/python3",
        "printf 'home = /usr/bin\\n' > .venv/pyvenv.cfg",
        "mkdir -p /scratch/cache/images",
    ]
    if image is not None:
        kept = f"/scratch/cache/images/{image.name}"
        lines += [
            *(f"cp /scratch/job/{made.name} /scratch/cache/" for made in (binary(), calls_binary())),
            f"cat /dev/vdd > {kept}; cp /scratch/job/base.sha256 {Path(kept).with_suffix('.sha256')}",
        ]
    return "\n".join([*lines, "set +e\n"])


def _script(job: Job) -> str:
    fixed = {"DSEC_CACHE": "/scratch/cache", "TMPDIR": "/scratch/tmp"}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in (fixed | {**job.environment}).items()]
    return "\n".join([*exports, f"cd {shlex.quote(str(CHECKOUT))}", f"exec {shlex.join(job.command)}\n"])
