"""The catalog: `layers/<sha256>.erofs`, and `names/<name>.json` that makes one of them visible.

A name appears by rename(2) of a complete, synced file, after the layer itself was synced: whatever moment a
process dies at, a name that can be read has a whole layer. Workshops are private directories of one import,
locked by it; those whose owner is dead are swept at the start of the next process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from dsec.bus import threads
from dsec.bus.errors import Conflict, NoSuchImage
from dsec.bus.files import file_work, sync
from dsec.bus.messages import Layer
from dsec.plugins.images import erofs, tree

_WORKSHOP = ".import-"


class Catalog:
    """All but `workshop` block. Several processes may use one home."""

    def __init__(self, home: Path) -> None:
        self._files = home / "layers"
        self._names = home / "names"
        self._known: dict[str, tuple[int, Layer]] = {}

    def open(self) -> None:
        """Make the directories, and sweep what crashed imports left."""
        for directory in (self._files, self._names):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for directory in (self._files, self._names):
            for leftover in directory.glob(f"{_WORKSHOP}*"):
                _sweep(leftover)

    def file(self, digest: str) -> Path:
        """Where the layer with this sha256 is, or would be."""
        return self._files / f"{digest}.erofs"

    def has(self, name: str) -> bool:
        """Whether there is a layer of this name."""
        return self._name_file(name).exists()

    def find(self, name: str) -> Layer:
        """Raises NoSuchImage telling how to import one. A name costs one stat(2) once it was read."""
        try:
            inode = self._name_file(name).stat().st_ino
        except FileNotFoundError:
            raise NoSuchImage(
                f"no layer {name!r} on this node: `dsec image import` it first", field="image"
            ) from None
        known = self._known.get(name)
        if known is None or known[0] != inode:
            known = self._known[name] = (inode, self._read(name))
        return known[1]

    def all(self) -> list[Layer]:
        """Every layer, by name."""
        names = sorted(path.stem for path in self._names.glob("[!.]*.json"))
        return [self._read(name) for name in names]

    @contextlib.asynccontextmanager
    async def workshop(self) -> AsyncIterator[Path]:
        """A private directory on the file system of the layers, removed at the end of the block."""
        with file_work("making a workshop for a layer"):
            directory = Path(tempfile.mkdtemp(prefix=_WORKSHOP, dir=self._files))
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield directory
        finally:
            await threads.finish(lambda: tree.remove(directory))
            os.close(lock)

    def add(self, name: str, image: Path, kind: str) -> Layer:
        """Take over the verified file `image` of a workshop as layer `name`.

        Repeatable with the same content; raises Conflict when the name holds other content.
        """
        digest, size = erofs.sha256(image), image.stat().st_size
        layer = Layer.model_validate({"name": name, "digest": digest, "size": size, "kind": kind})
        with self._alone():
            if self._name_file(name).exists():
                return _same(self._read(name), layer)
            self._keep(image, digest)
            self._publish(layer)
        return layer

    def remove(self, name: str) -> None:
        """Forget a name. Repeatable."""
        self._name_file(name).unlink(missing_ok=True)

    def collect(self, used: frozenset[str]) -> None:
        """Delete layer files that have no name (a crash came in between, or it was removed) nor a user."""
        with self._alone():
            kept = used.union(layer.digest for layer in self.all())
            for file in set(self._files.glob("[!.]*.erofs")):
                if file.stem not in kept:
                    file.unlink()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Between a layer's file and its name, over all processes."""
        lock = os.open(self._names, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _name_file(self, name: str) -> Path:
        return self._names / f"{name}.json"

    def _read(self, name: str) -> Layer:
        return Layer.model_validate_json(self._name_file(name).read_bytes())

    def _keep(self, image: Path, digest: str) -> None:
        kept = self.file(digest)
        if kept.exists() and erofs.sha256(kept) == digest:
            return
        image.chmod(0o400)
        sync(image)
        image.replace(kept)
        sync(self._files)

    def _publish(self, layer: Layer) -> None:
        draft = Path(tempfile.mkdtemp(prefix=_WORKSHOP, dir=self._names)) / "layer.json"
        try:
            draft.write_text(layer.model_dump_json())
            sync(draft)
            draft.replace(self._name_file(layer.name))
        finally:
            tree.remove(draft.parent)
        sync(self._names)


def _same(found: Layer, wanted: Layer) -> Layer:
    if found.digest == wanted.digest:
        return found
    raise Conflict(f"layer {wanted.name!r} has other content: choose another name or remove it", field="name")


def _sweep(leftover: Path) -> None:
    """Remove a workshop whose owner is dead: it does not hold the lock any more."""
    with contextlib.suppress(FileNotFoundError, BlockingIOError):
        lock = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            tree.remove(leftover)
        finally:
            os.close(lock)
