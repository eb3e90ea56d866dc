"""`backup`: while the platform runs, with the operator's credentials."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from dsec import __version__
from dsec.bus import subjects
from dsec.bus.backup.images import catalog
from dsec.bus.backup.manifest import STREAM_DATA, STREAM_HEAD, Kept, Manifest, layer_file, seal, stream_file
from dsec.bus.errors import GoneError, SpecError
from dsec.bus.files import file_work, sync
from dsec.bus.home import Home
from dsec.bus.ids import tail
from dsec.bus.messages import Layer
from dsec.bus.nats import snapshots
from dsec.bus.transport import Bus

STREAMS: Final = (
    f"KV_{subjects.IAM_BUCKET}",
    "JOBS",
    f"KV_{subjects.JOBS_BUCKET}",
    f"KV_{subjects.OPS_BUCKET}",
    f"KV_{subjects.NODES_BUCKET}",
    f"KV_{subjects.REGISTRY_BUCKET}",
    "EVENT",
    "AUDIT",
)
"""In this order: an order before what was done about it, so that nothing is done twice after a restore; the
audit last, so that it tells of all before. Not kept: leases of quotas, which belong to live cores."""
OUTPUT: Final = "EXEC"
_PARTIAL: Final = ".partial-"


async def backup(bus: Bus, home: Home, directory: Path, *, output: bool = False) -> Manifest:
    """Make the back-up `directory`, which must not exist; `output`: with what commands printed.

    Raises SpecError (it exists), DiskFull, BrokerDown, DeadlineExceeded, InfraError; nothing is left then.
    """
    directory = directory.absolute()
    if directory.exists():
        raise SpecError(f"{directory} exists: name a new directory", field="directory")
    with file_work(f"the back-up {directory}"):
        async with _growing(directory) as partial:
            kept = [await _stream(bus, partial, name) for name in (*STREAMS, *((OUTPUT,) if output else ()))]
            images = {node: await _images(home, node, partial) for node in nodes_of(home)}
            manifest = Manifest(
                id=tail(),
                made=int(time.time() * 1000),
                version=__version__,
                streams=[one for one in kept if one is not None],
                images=images,
            )
            await asyncio.to_thread(_finish, partial, directory, manifest)
    return manifest


def nodes_of(home: Home) -> list[str]:
    """Nodes of this home that have a catalog of images."""
    return sorted(path.parent.parent.name for path in home.path.glob("nodes/*/images/names"))


@contextlib.asynccontextmanager
async def _growing(directory: Path) -> AsyncIterator[Path]:
    """A private directory beside `directory`; what killed predecessors left there goes first."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{directory.name}{_PARTIAL}"
    for leftover in directory.parent.glob(f"{prefix}*"):
        _sweep(leftover)
    partial = directory.with_name(prefix + tail(8))
    partial.mkdir(mode=0o700)
    lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield partial
    finally:
        os.close(lock)
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)


def _sweep(leftover: Path) -> None:
    """Its maker is dead: nobody holds its lock."""
    with contextlib.suppress(FileNotFoundError, BlockingIOError, NotADirectoryError):
        lock = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)
        finally:
            os.close(lock)


async def _stream(bus: Bus, partial: Path, name: str) -> Kept | None:
    """None for a stream that this installation does not have."""
    head: dict[str, Any] = {}
    file = stream_file(partial, name, STREAM_DATA)
    file.parent.mkdir(parents=True)
    try:
        with file.open("wb") as archive:
            async for chunk in snapshots.take(bus, name, head):
                await asyncio.to_thread(archive.write, chunk)
    except GoneError:
        shutil.rmtree(file.parent)
        return None
    stream_file(partial, name, STREAM_HEAD).write_bytes(orjson.dumps(head, option=orjson.OPT_INDENT_2))
    return Kept(name=name, config=head["config"], state=head["state"], size=file.stat().st_size)


async def _images(home: Home, node: str, partial: Path) -> list[Layer]:
    (partial / "layers").mkdir(exist_ok=True)
    async with catalog(home, node) as images:
        return await images.export(lambda digest: layer_file(partial, digest))


def _finish(partial: Path, directory: Path, manifest: Manifest) -> None:
    seal(partial, manifest)
    for path in _deepest_first(partial):
        sync(path)
    partial.rename(directory)
    sync(directory.parent)


def _deepest_first(directory: Path) -> Iterator[Path]:
    yield from sorted(directory.rglob("*"), key=lambda path: -len(path.parts))
    yield directory
