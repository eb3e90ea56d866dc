"""What a back-up consists of, and whether it is whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from dsec.bus.errors import SpecError
from dsec.bus.messages import Layer, Message

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
SUMS: Final = "SHA256SUMS"
STREAM_HEAD, STREAM_DATA = "backup.json", "stream.tar.s2"
_PIECE: Final = 1 << 20


class Kept(Message):
    """One stream: `config` and `state` as JetStream told them, `size` in bytes of its archive."""

    name: str
    config: dict[str, Any]
    state: dict[str, Any]
    size: int


class Manifest(Message):
    """`id` names the back-up, `made` in unix ms; `images`: the catalog of each node."""

    format: int = FORMAT
    id: str
    made: int
    version: str
    streams: list[Kept]
    images: dict[str, list[Layer]]

    @property
    def layers(self) -> dict[str, Layer]:
        """By digest."""
        return {layer.digest: layer for layers in self.images.values() for layer in layers}


def layer_file(directory: Path, digest: str) -> Path:
    return directory / "layers" / f"{digest}.erofs"


def stream_file(directory: Path, stream: str, name: str) -> Path:
    return directory / "streams" / stream / name


def read(directory: Path) -> Manifest:
    """The manifest of a back-up, all of whose files are as they were written. Blocks: it reads everything.

    Raises SpecError naming the first file that is missing, damaged or too much.
    """
    try:
        expected = _sums(directory)
        for name, digest in expected.items():
            if sha256(directory / name) != digest:
                raise _damaged(directory, f"{name} is not what was written")
        _complete(directory, set(expected))
        manifest = Manifest.model_validate_json((directory / MANIFEST).read_bytes())
    except FileNotFoundError as error:
        raise _damaged(directory, f"{error.filename} is missing") from error
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise _damaged(directory, str(error)) from error
    if manifest.format != FORMAT:
        raise SpecError(
            f"{directory} has format {manifest.format}: a newer version made it", field="directory"
        )
    return manifest


def seal(directory: Path, manifest: Manifest) -> None:
    """Write the manifest and the sums of all files. Blocks. Raises OSError."""
    (directory / MANIFEST).write_bytes(manifest.model_dump_json(indent=1).encode())
    lines = [f"{sha256(file)}  {file.relative_to(directory)}\n" for file in _files(directory)]
    (directory / SUMS).write_text("".join(lines), encoding="utf-8")


def sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def pieces(file: Path) -> Iterator[bytes]:
    """The file in pieces that fit into a message."""
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE // 8):
            yield piece


def _sums(directory: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (directory / SUMS).read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name or ".." in Path(name).parts or Path(name).is_absolute():
            raise _damaged(directory, f"{SUMS} has a line that is none")
        found[name] = digest
    return found


def _complete(directory: Path, summed: set[str]) -> None:
    there = {str(file.relative_to(directory)) for file in _files(directory)} - {SUMS}
    if there - summed:
        raise _damaged(directory, f"{min(there - summed)} does not belong to it")
    if MANIFEST not in summed:
        raise _damaged(directory, f"{MANIFEST} is missing")


def _files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.rglob("*") if not file.is_dir())


def _damaged(directory: Path, why: str) -> SpecError:
    return SpecError(f"{directory} is not a whole back-up: {why}; take another", field="directory")
