"""Small static programs of the platform: compiled on first use, kept in a cache by the hash of their
source.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsec.bus.errors import MissingTool

FLAGS: Final = ("-std=gnu11", "-static", "-O2", "-s", "-Wall", "-Wextra", "-Werror")
COMPILER: Final = "musl-gcc"


def cache() -> Path:
    """Where binaries are kept: $DSEC_CACHE, else ~/.cache/opendsec."""
    given = os.environ.get("DSEC_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "opendsec"


@dataclass(frozen=True, slots=True)
class Program:
    """`source` is a directory of C files; `generate` writes headers made from its other files, `inputs`."""

    name: str
    source: Path
    inputs: Sequence[str] = ()
    generate: Callable[[Path, Path], None] | None = None
    flags: Sequence[str] = FLAGS

    def binary(self) -> Path:
        """The path of a static program made from the present source. Raises MissingTool without a
        compiler.
        """
        path = cache() / f"{self.name}-{self._hash()}"
        if not path.exists():
            self._compile(path)
        return path

    def _sources(self) -> list[Path]:
        return sorted(self.source.glob("*.[ch]"))

    def _hash(self) -> str:
        digest = hashlib.sha256(" ".join((COMPILER, *self.flags)).encode())
        for source in (*self._sources(), *(self.source / name for name in self.inputs)):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
        return digest.hexdigest()[:16]

    def _compile(self, path: Path) -> None:
        """Into a directory of its own, then renamed: of two builds at once each leaves a whole binary."""
        compiler = shutil.which(COMPILER)
        if compiler is None:
            raise MissingTool(f"{COMPILER} is needed to build {self.name}: install musl-tools")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="building-") as scratch:
            made = Path(scratch) / path.name
            if self.generate is not None:
                self.generate(self.source, Path(scratch))
            units = [str(source) for source in self._sources() if source.suffix == ".c"]
            done = subprocess.run(
                [compiler, *self.flags, f"-I{scratch}", "-o", str(made), *units],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise MissingTool(f"{COMPILER} could not build {self.name}: {done.stderr.strip()[-2000:]}")
            made.rename(path)
