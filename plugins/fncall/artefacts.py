"""Artefacts: files that calls leave for later calls, by content, per project and within a budget.

    <home>/artefacts/<project>/<sha256>

They belong to one node: a client that meets another node sends the content again. What was used last stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from dsec.bus.errors import DiskFull, LimitError, NoSuchArtefact

LONGEST: Final = 64 << 20
"""Bytes of one artefact."""
_UNFINISHED: Final = ".new-"


class Artefacts:
    """`budget`: bytes of each project."""

    def __init__(self, home: Path, budget: int) -> None:
        self._home = home
        self._budget = budget

    async def get(self, project: str, digest: str) -> bytes:
        """Raises NoSuchArtefact."""
        return await asyncio.to_thread(self._get, project, digest)

    async def put(self, project: str, content: bytes) -> str:
        """Its digest; the oldest ones make room. Raises LimitError, DiskFull."""
        return await asyncio.to_thread(self._put, project, content)

    def _get(self, project: str, digest: str) -> bytes:
        path = self._home / project / digest
        try:
            content = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            raise NoSuchArtefact(f"no artefact {digest[:12]}… on this node: send its content") from None
        if hashlib.sha256(content).hexdigest() != digest:
            path.unlink(missing_ok=True)  # a machine that lost power over it
            raise NoSuchArtefact(f"artefact {digest[:12]}… was damaged: send its content")
        return content

    def _put(self, project: str, content: bytes) -> str:
        if len(content) > min(LONGEST, self._budget):
            raise LimitError(f"an artefact of {len(content)} bytes is over {LONGEST}", field="keep")
        digest, directory = hashlib.sha256(content).hexdigest(), self._home / project
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_room(directory, len(content), digest)
            with tempfile.NamedTemporaryFile(dir=directory, prefix=_UNFINISHED, delete=False) as file:
                file.write(content)
            Path(file.name).replace(directory / digest)
        except OSError as error:
            raise DiskFull.during("keeping an artefact", error) from error
        return digest

    def _make_room(self, directory: Path, size: int, digest: str) -> None:
        """Least recently used ones go first; what a crash left unfinished goes too."""
        there = []
        for path in directory.iterdir():
            if path.name.startswith(_UNFINISHED):
                path.unlink(missing_ok=True)
            elif path.name != digest:
                told = path.stat()
                there.append((told.st_mtime, told.st_size, path))
        left = self._budget - size - sum(one[1] for one in there)
        for _, taken, path in sorted(there):
            if left >= 0:
                return
            path.unlink(missing_ok=True)
            left += taken
