"""Layers on their way out of a catalog and into another."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from dsec.bus.errors import InfraError

_PIECE: Final = 1 << 20


def copy(source: Path, digest: str, to: Path) -> None:
    """Blocking. Raises InfraError when the source is not what its name says, FileNotFoundError, OSError."""
    found = hashlib.sha256()
    with source.open("rb") as read, to.open("xb") as written:
        while piece := read.read(_PIECE):
            found.update(piece)
            written.write(piece)
    if found.hexdigest() != digest:
        to.unlink()
        raise InfraError(f"layer {digest[:12]} is damaged on this node's disk: import it again")
