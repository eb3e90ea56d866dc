"""What the tasks are made of: releases fetched once and checked, and trees that become layers.

Everything lies in a cache outside the checkout (`$DSEC_CACHE`, default `~/.cache/opendsec`). A file counts
only while its sha256 is the one in `tasks.py` or `WHEELS`; anything else is fetched again.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from dsec.bus.errors import InfraError

from .tasks import TASKS, Release, Task

TOOLKIT = "opt/toolkit"
GRADER = "opt/grader"
WHEELS = {
    "pytest-8.3.5-py3-none-any.whl": "c69214aa47deac29fad6c2a4f590b9c4a9fdb16a403176fe154b79c0b4d4d820",
    "pluggy-1.5.0-py3-none-any.whl": "44e1ad92c8ca002de6377e165f3e0f1be63266ab4d554740532335b9d75ea669",
    "iniconfig-2.0.0-py3-none-any.whl": "b6a85871a79d2e3b22d2d1b94ac2824226a63c6b741c88f7ae975f18b6778374",
    "packaging-24.2-py3-none-any.whl": "09abb1bccd265c01f4a3aa3f7a7db064b36514d2cba19a2f694fe6150451a759",
}
"""pytest and what it needs, as pure Python wheels: file name -> sha256."""


def cache() -> Path:
    """The directory of everything that was fetched for the tasks."""
    root = os.environ.get("DSEC_CACHE") or Path.home() / ".cache" / "opendsec"
    path = Path(root) / "swe_rollouts"
    path.mkdir(parents=True, exist_ok=True)
    return path


def ensure(tasks: Iterable[Task] = tuple(TASKS.values())) -> Path:
    """Fetch what is missing and return the cache. Raises InfraError telling what could not be had."""
    directory = cache()
    chosen = tuple(tasks)
    # pip takes one version of a distribution at a time, so older and newer releases are fetched apart.
    for releases in ([task.older for task in chosen], [task.newer for task in chosen]):
        names = ",".join(one.distribution for one in releases)
        _fetch(directory, {f"{one.stem}.tar.gz": one.sha256 for one in releases}, ("--no-binary", names))
    _fetch(directory, WHEELS, ("--only-binary", ":all:"))
    return directory


def _fetch(directory: Path, files: dict[str, str], kind: tuple[str, str]) -> None:
    missing = {name: digest for name, digest in files.items() if not _good(directory / name, digest)}
    if not missing:
        return
    with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as staging:
        wanted = Path(staging) / "requirements.txt"
        wanted.write_text(
            "".join(f"{_pin(name)} --hash=sha256:{digest}\n" for name, digest in missing.items())
        )
        _pip("download", "--no-deps", *kind, "--require-hashes", "-d", staging, "-r", str(wanted))
        for name, digest in missing.items():
            if not _good(Path(staging) / name, digest):
                raise InfraError(f"{name} was fetched but its sha256 is not {digest}")
            Path(staging, name).replace(directory / name)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise InfraError(f"pip could not fetch the demo's releases: {done.stderr.strip()[-800:]}")


def _pin(name: str) -> str:
    """`more-itertools-10.1.0.tar.gz` and `pytest-8.3.5-py3-none-any.whl` as `name==version`."""
    stem = name.removesuffix(".tar.gz").removesuffix("-py3-none-any.whl")
    distribution, _, version = stem.rpartition("-")
    return f"{distribution}=={version}"


def _good(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def unpack(release: Release, directory: Path) -> Path:
    """The release's tree, unpacked under `directory`; returns its top."""
    archive = cache() / f"{release.stem}.tar.gz"
    if not _good(archive, release.sha256):
        raise InfraError(f"{archive} is missing or damaged; run material.ensure()")
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # which Debian 12's Python 3.11.2 lacks
        tar.extractall(directory)
    return directory / release.stem


def workspace(task: Task, directory: Path) -> Path:
    """Make `directory` the task: the older release with the newer one's tests and nothing else of it."""
    with tempfile.TemporaryDirectory() as scratch:
        older, newer = (unpack(one, Path(scratch)) for one in (task.older, task.newer))
        shutil.rmtree(older / task.tests, ignore_errors=True)
        shutil.copytree(newer / task.tests, older / task.tests)
        shutil.copytree(older, directory, dirs_exist_ok=True)
    return directory


def workspace_layer(task: Task, top: Path) -> Path:
    """`workspace` where it stands in a sandbox, below `top`."""
    return workspace(task, top / task.root.lstrip("/"))


def patch(task: Task) -> dict[str, bytes]:
    """The solution: path below the root -> content of each source file that the newer release changed."""
    return {path: after for path, (_, after) in changes(task).items()}


def changes(task: Task) -> dict[str, tuple[bytes, bytes]]:
    """Path below the task's root -> content before and after, of each source file that differs.

    None of the pairs deletes a source file; one that did is refused, since a patch here only writes.
    """
    with tempfile.TemporaryDirectory() as scratch:
        older, newer = (
            _sources(unpack(one, Path(scratch)), task.package) for one in (task.older, task.newer)
        )
    if gone := older.keys() - newer.keys():
        raise InfraError(f"{task.name}: the newer release deletes {sorted(gone)}; such a pair is no task")
    return {path: (older.get(path, b""), data) for path, data in newer.items() if older.get(path) != data}


def _sources(top: Path, package: str) -> dict[str, bytes]:
    found = (path for path in sorted((top / package).rglob("*")) if path.is_file())
    return {str(path.relative_to(top)): path.read_bytes() for path in found}


def toolkit(directory: Path) -> Path:
    """pytest below `directory`/opt/toolkit, for the agents' own use."""
    return _install(directory / TOOLKIT)


def grader(directory: Path) -> Path:
    """The grader's own layer below `directory`/opt/grader: pytest again, and the program that runs it."""
    top = _install(directory / GRADER / "lib").parent
    shutil.copy(Path(__file__).parent / "inside" / "grade.py", top / "grade.py")
    return top


def _install(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in WHEELS:
        with zipfile.ZipFile(cache() / name) as wheel:
            wheel.extractall(directory)
    # Read-only layers cannot keep byte code later; of another Python version it is only ignored.
    compileall.compile_dir(
        directory,
        quiet=2,
        stripdir=str(directory),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    return directory
