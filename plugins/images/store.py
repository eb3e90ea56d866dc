"""`ErofsImages`: the layers of a node, and the root file systems composed from them.

layers/  names/   the catalog           (catalog.py)
mnt/<sha256>      layers, mounted once  (layers.py)
sandboxes/<id>/   root file systems     (rootfs.py)
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal, Self

from dsec.bus import ids, threads
from dsec.bus.driver import Rootfs
from dsec.bus.errors import Conflict, NoSuchSandbox, SpecError
from dsec.bus.files import file_work
from dsec.bus.messages import Layer
from dsec.bus.spec import Image
from dsec.plugins.images import archive, copies, doctor, erofs, pack
from dsec.plugins.images.base import base_image, functions_image
from dsec.plugins.images.catalog import Catalog
from dsec.plugins.images.layers import LayerMounts
from dsec.plugins.images.ranges import Namespaces, Ranges
from dsec.plugins.images.rootfs import Composition, Place

Kind = Literal["base", "workspace", "toolkit", "pack"]
_MOVERS: Final = 8
_PACKS: Final = 2
"""Writable layers packed at once: each takes a core."""
_LAYER_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")


class ErofsImages:
    """Implements `bus.driver.Images`, and imports layers.

    `volatile`: fsync inside costs nothing, and a writable layer does not survive a power cut.
    Leaving `async with` (or `close`) unmounts the layers that no sandbox uses; sandboxes stay as they are.
    """

    def __init__(self, home: Path, *, volatile: bool = True) -> None:
        self._home = home.absolute()
        self._volatile = volatile
        self._sandboxes = self._home / "sandboxes"
        self._catalog = Catalog(self._home)
        self._mounts = LayerMounts(self._home / "mnt", self._catalog.file)
        self._ranges = Ranges()
        self._namespaces = Namespaces()
        self._live: dict[str, Composition] = {}
        self._opening = asyncio.Lock()
        self._opened = False
        # A process that only imports leaves the mounts alone: they are another one's.
        self._composes = False
        # setfsuid holds for one thread: composing keeps to this one, where nothing else runs.
        self._composer = ThreadPoolExecutor(1, thread_name_prefix="compose")
        # Deleting and packing take as long as an agent makes them: no thread that others need waits there.
        self._movers = ThreadPoolExecutor(_MOVERS, thread_name_prefix="layers")
        self._packing = asyncio.Semaphore(_PACKS)

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Unmount what no sandbox uses, delete layers that have no name and no user; repeatable."""
        if self._composes:
            await threads.finish(lambda: self._mounts.drop(self._used()))
        if self._opened:
            await threads.finish(lambda: self._catalog.collect(self._used()))
        for executor in (self._composer, self._movers):
            await threads.finish(executor.shutdown)
        self._namespaces.close()

    @staticmethod
    async def default_base() -> Path:
        """The base layer of this machine, built at first use (`base.base_image`)."""
        return await base_image()

    @staticmethod
    async def default_functions() -> Path:
        """The layer of this machine for stateless calls, built at first use (`base.functions_image`)."""
        return await functions_image()

    async def check(self) -> None:
        """Whether this machine can compose. Raises MissingTool telling what to install or enable."""
        await doctor.check()

    async def compose(self, sandbox: str, image: Image) -> Rootfs:
        """See `bus.driver.Images`. Raises Conflict as well, when the sandbox has a root file system."""
        place = await self._place(sandbox)
        if sandbox in self._live:
            raise Conflict(f"{sandbox} has a root file system already")
        digests = _topmost([self._catalog.find(name).digest for name in image.layers])
        chosen = Composition(layers=digests, uid_base=self._ranges.take(), volatile=self._volatile)
        self._live[sandbox] = chosen
        try:
            points = await self._mounts.mount(digests)
            return await self._compose(place, chosen, points)
        except BaseException:
            self._forget(sandbox)
            raise

    async def release(self, sandbox: str) -> None:
        """See `bus.driver.Images`."""
        place = await self._place(sandbox)
        await threads.finish(place.release, self._movers)
        self._forget(sandbox)

    async def recover(self, sandbox: str) -> Rootfs:
        """See `bus.driver.Images`. A mount that is gone is made again over the same writable layer."""
        place = await self._place(sandbox)
        points = await self._mounts.mount(place.composition().layers)
        return await threads.finish(lambda: place.recover(points), self._composer)

    async def composed(self) -> frozenset[str]:
        """See `bus.driver.Images`."""
        await self._open()
        return await asyncio.to_thread(lambda: frozenset(entry.name for entry in self._sandboxes.iterdir()))

    async def pack(self, sandbox: str, name: str, paths: tuple[str, ...] | None) -> Layer:
        """See `bus.driver.Images`, and pack.py for what is kept."""
        place = await self._place(sandbox)
        lowers = await self._mounts.mount(reversed(place.composition().layers))
        async with self._packing, self._importing(name) as workshop:
            tree = workshop / "tree"
            await threads.finish(lambda: pack.stage(place.upper, lowers, tree, paths), self._movers)
            return await self._add(name, "pack", tree, workshop, keep_times=True)

    async def has(self, name: str) -> bool:
        """See `bus.driver.Images`."""
        await self._open()
        return self._catalog.has(name)

    async def layers(self) -> list[Layer]:
        """See `bus.driver.Images`."""
        await self._open()
        return await asyncio.to_thread(self._catalog.all)

    async def import_tree(self, name: str, directory: Path, kind: Kind, *, keep_times: bool = False) -> Layer:
        """The tree as layer `name`; owners are kept. Times only on request: they make each checkout another.

        Repeatable with the same content. Raises SpecError, Conflict, DiskFull, MissingTool.
        """
        if not directory.is_dir():
            raise SpecError(f"{directory} is not a directory", field="directory")
        async with self._importing(name) as workshop:
            return await self._add(name, kind, directory, workshop, keep_times=keep_times)

    async def import_tar(self, name: str, tar: Path, kind: Kind) -> Layer:
        """An archive (plain, gzip, bzip2, xz) as layer `name`: owners, modes, times and attributes are kept.

        Repeatable. Raises UnsafeArchive, SpecError, Conflict, DiskFull, MissingTool.
        """
        async with self._importing(name) as workshop:
            await archive.unpack(tar, workshop / "tree", devices=kind == "base")
            return await self._add(name, kind, workshop / "tree", workshop, keep_times=True)

    async def import_file(self, name: str, image: Path, kind: Kind) -> Layer:
        """An EROFS file, copied, as layer `name`. Repeatable.

        Raises SpecError when it is not sound, Conflict, DiskFull, MissingTool.
        """
        if not image.is_file():
            raise SpecError(f"{image} is not a file", field="image")
        async with self._importing(name) as workshop:
            copy = workshop / "image"
            await threads.finish(lambda: shutil.copyfile(image, copy))
            await erofs.verify(copy, image.name)
            return await threads.finish(lambda: self._catalog.add(name, copy, kind))

    async def export(self, where: Callable[[str], Path]) -> list[Layer]:
        """See `bus.backup.images`. A layer that is removed meanwhile is left out."""
        await self._open()
        with file_work("copying layers"):
            return await threads.finish(lambda: self._export(where))

    def _export(self, where: Callable[[str], Path]) -> list[Layer]:
        exported: list[Layer] = []
        for layer in self._catalog.all():
            try:
                if not where(layer.digest).exists():
                    copies.copy(self._catalog.file(layer.digest), layer.digest, where(layer.digest))
            except FileNotFoundError:
                if self._catalog.has(layer.name):
                    raise
            else:
                exported.append(layer)
        return exported

    async def take(self, layer: Layer, file: Path) -> None:
        """See `bus.backup.images`."""
        async with self._importing(layer.name) as workshop:
            copy = workshop / "image"
            await threads.finish(lambda: copies.copy(file, layer.digest, copy))
            await threads.finish(lambda: self._catalog.add(layer.name, copy, layer.kind))

    async def remove(self, name: str) -> None:
        """Forget a layer; its file goes when no sandbox uses it any more. Repeatable."""
        await self._open()
        await threads.finish(lambda: self._catalog.remove(name))
        await threads.finish(lambda: self._catalog.collect(self._used()))

    async def _open(self) -> None:
        async with self._opening:
            if not self._opened:
                with file_work(f"opening {self._home}"):
                    await threads.finish(self._load)
                self._opened = True

    def _load(self) -> None:
        self._sandboxes.mkdir(parents=True, exist_ok=True, mode=0o711)
        self._catalog.open()
        self._live = self._compositions()
        self._ranges.claim([one.uid_base for one in self._live.values()])

    def _compositions(self) -> dict[str, Composition]:
        """As they are on disk. A sandbox without one was cut off while it was made: its release is due."""
        found = {}
        for entry in self._sandboxes.iterdir():
            with contextlib.suppress(NoSuchSandbox):
                found[entry.name] = self._at(entry.name).composition()
        return found

    async def _place(self, sandbox: str) -> Place:
        ids.check("sandbox", sandbox)
        await self._open()
        self._composes = True
        return self._at(sandbox)

    def _at(self, sandbox: str) -> Place:
        return Place(self._sandboxes, sandbox, self._namespaces)

    async def _compose(self, place: Place, chosen: Composition, points: list[Path]) -> Rootfs:
        try:
            return await threads.finish(lambda: place.compose(chosen, points), self._composer)
        except asyncio.CancelledError:
            await threads.finish(place.release, self._movers)
            raise

    def _forget(self, sandbox: str) -> None:
        if gone := self._live.pop(sandbox, None):
            self._ranges.give(gone.uid_base)

    def _used(self) -> frozenset[str]:
        """Digests of layers below sandboxes, those of other processes on this home among them."""
        everyone = (*self._compositions().values(), *self._live.values())
        return frozenset(digest for one in everyone for digest in one.layers)

    @contextlib.asynccontextmanager
    async def _importing(self, name: str) -> AsyncIterator[Path]:
        """A workshop for layer `name`, with errors of file work translated."""
        if _LAYER_NAME.fullmatch(name) is None:
            raise SpecError(f"{name!r} is not a layer name: {_LAYER_NAME.pattern}", field="name")
        await self._open()
        with file_work(f"importing layer {name!r}"):
            async with self._catalog.workshop() as workshop:
                yield workshop

    async def _add(self, name: str, kind: Kind, tree: Path, workshop: Path, *, keep_times: bool) -> Layer:
        image = workshop / "image"
        await erofs.build(tree, image, keep_times=keep_times)
        await erofs.verify(image)
        return await threads.finish(lambda: self._catalog.add(name, image, kind))


def _topmost(digests: list[str]) -> tuple[str, ...]:
    """Each layer once, where it stands highest: overlayfs refuses one twice, and only that one can show."""
    seen = dict.fromkeys(reversed(digests))
    return tuple(reversed(seen))
