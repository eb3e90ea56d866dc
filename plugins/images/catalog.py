"""The catalog: `layers/<sha256>.erofs`, and `names/<name>.json` that makes one of them visible.

A name appears by link(2) of a complete, synced file, after the layer itself was synced: whatever moment a
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

from dsec.bus.errors import Conflict, NoSuchImage
from dsec.bus.messages import Layer
from dsec.plugins.images import erofs, problems, threads, tree

_WORKSHOP = ".import-"


class Catalog:
    """All but `workshop` block. Several processes may use one home."""

    def __init__(self, home: Path) -> None:
        self._files = home / "layers"
        self._names = home / "names"
        self._known: dict[str, Layer] = {}

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

    def find(self, name: str) -> Layer:
        """Raises NoSuchImage telling how to import one."""
        if layer := self._known.get(name) or self._read(name):
            self._known[name] = layer
            return layer
        raise NoSuchImage(f"no layer {name!r} on this node: import it first", field="image")

    def all(self) -> list[Layer]:
        """Every layer, by name."""
        names = sorted(path.stem for path in self._names.glob("[!.]*.json"))
        return [layer for name in names if (layer := self._read(name))]

    @contextlib.asynccontextmanager
    async def workshop(self) -> AsyncIterator[Path]:
        """A private directory on the file system of the layers, removed at the end of the block."""
        with problems.files("making a workshop for a layer"):
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
        if found := self._read(name):
            return _same(found, layer)
        self._keep(image, digest)
        return self._publish(layer)

    def remove(self, name: str) -> str | None:
        """Forget a name; the digest of its layer if no other name has it. Repeatable."""
        layer = self._read(name)
        self._known.pop(name, None)
        self._name_file(name).unlink(missing_ok=True)
        if layer is None or any(other.digest == layer.digest for other in self.all()):
            return None
        return layer.digest

    def unnamed(self) -> Iterator[str]:
        """Digests of layer files that no name has: left by a crash, or removed while in use."""
        named = {layer.digest for layer in self.all()}
        return (path.stem for path in self._files.glob("[!.]*.erofs") if path.stem not in named)

    def _name_file(self, name: str) -> Path:
        return self._names / f"{name}.json"

    def _read(self, name: str) -> Layer | None:
        try:
            return Layer.model_validate_json(self._name_file(name).read_bytes())
        except FileNotFoundError:
            return None

    def _keep(self, image: Path, digest: str) -> None:
        kept = self.file(digest)
        if kept.exists() and erofs.sha256(kept) == digest:
            return
        image.chmod(0o400)
        tree.sync(image)
        image.replace(kept)
        tree.sync(self._files)

    def _publish(self, layer: Layer) -> Layer:
        draft = Path(tempfile.mkdtemp(prefix=_WORKSHOP, dir=self._names))
        try:
            file = draft / "layer.json"
            file.write_text(layer.model_dump_json())
            tree.sync(file)
            os.link(file, self._name_file(layer.name))
        except FileExistsError:
            return _same(self.find(layer.name), layer)
        finally:
            tree.remove(draft)
        tree.sync(self._names)
        return layer


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
