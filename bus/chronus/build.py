"""The chronus binary: compiled on first use, kept in a cache by the hash of its source.

`python -m dsec.bus.chronus.build` compiles if need be and prints the path.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from dsec.bus.errors import MissingTool

SOURCE: Final = Path(__file__).parent
FLAGS: Final = ("-std=gnu11", "-static", "-O2", "-s", "-Wall", "-Wextra", "-Werror")
COMPILER: Final = "musl-gcc"


def binary() -> Path:
    """The path of a static chronus made from the present source. Raises MissingTool without a compiler."""
    path = cache() / f"chronus-{_source_hash()}"
    if not path.exists():
        _compile(path)
    return path


def cache() -> Path:
    """Where binaries are kept: $DSEC_CACHE, else ~/.cache/opendsec."""
    given = os.environ.get("DSEC_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "opendsec"


def _sources() -> list[Path]:
    return sorted(SOURCE.glob("*.[ch]"))


def _source_hash() -> str:
    digest = hashlib.sha256(" ".join((COMPILER, *FLAGS)).encode())
    for source in _sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(path: Path) -> None:
    """Into a directory of its own, then renamed: of two builds at once each leaves a whole binary."""
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise MissingTool(f"{COMPILER} is needed to build chronus: install musl-tools")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="building-") as scratch:
        made = Path(scratch) / path.name
        units = [str(source) for source in _sources() if source.suffix == ".c"]
        done = subprocess.run(
            [compiler, *FLAGS, "-o", str(made), *units], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise MissingTool(f"{COMPILER} could not build chronus: {done.stderr.strip()[-2000:]}")
        made.rename(path)


if __name__ == "__main__":
    print(binary())  # noqa: T201 (the output of this program)
