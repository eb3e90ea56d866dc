"""`restore`: into a home that nothing runs on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsec.bus.backup.images import catalog
from dsec.bus.backup.manifest import STREAM_DATA, Kept, Manifest, layer_file, pieces, read, stream_file
from dsec.bus.errors import Conflict, DiskFull, InfraError
from dsec.bus.files import file_work, write_private
from dsec.bus.home import Home
from dsec.bus.nats import snapshots
from dsec.bus.nats.broker import ACCOUNT, Broker, BrokerAuth
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire

STAGE: Final = ".restore"
MARK: Final = "restored.json"
"""In `broker/`: which back-up its streams came from."""
SPARE: Final = 64 << 20
"""Bytes that the disk keeps free."""


@dataclass(frozen=True, slots=True)
class Restored:
    """`already`: the home had this back-up before, and was left as it has become since."""

    manifest: Manifest
    already: bool = False


async def restore(home: Home, directory: Path) -> Restored:
    """Bring a back-up into a home without streams. Repeatable, also when it was interrupted.

    Raises SpecError (it is damaged), Conflict (the home has other streams, or other layers of these names),
    AlreadyRunning, DiskFull, MissingTool, BrokerDown, InfraError; what the home had is as it was then.
    """
    manifest = await asyncio.to_thread(read, directory)
    with contextlib.ExitStack() as held, file_work(f"restoring {directory}"):
        for what in ("control", *manifest.images):
            held.enter_context(home.held(what))
        stage = home.path / STAGE
        await asyncio.to_thread(shutil.rmtree, stage, ignore_errors=True)
        if _has_streams(home):
            if _mark(home) == manifest.id:
                return Restored(manifest, already=True)
            raise Conflict(f"{home.path} has streams of its own: choose an empty home", field="home")
        await _comparable(home, manifest)
        _room(home, manifest)
        try:
            await _streams(stage, directory, manifest)
            await _images(home, directory, manifest)
            _put(stage, home, manifest)
        finally:
            await asyncio.to_thread(shutil.rmtree, stage, ignore_errors=True)
    return Restored(manifest)


def _has_streams(home: Home) -> bool:
    return any((home.broker / "jetstream").glob("**/streams/*"))


def _mark(home: Home) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return str(json.loads((home.broker / MARK).read_text(encoding="utf-8"))["id"])
    return ""


async def _comparable(home: Home, manifest: Manifest) -> None:
    """Raises Conflict when a name that is to be restored has another layer."""
    for node, layers in manifest.images.items():
        if not (home.images(node) / "names").exists():
            continue
        async with catalog(home, node) as images:
            there = {layer.name: layer.digest for layer in await images.layers()}
        for layer in layers:
            if there.get(layer.name, layer.digest) != layer.digest:
                raise Conflict(f"{node} has another layer {layer.name!r}: remove it first", field="home")


def _room(home: Home, manifest: Manifest) -> None:
    layers = sum(layer.size for layers in manifest.images.values() for layer in layers)
    archives = sum(max(kept.size, int(kept.state.get("bytes", 0))) for kept in manifest.streams)
    needed, free = layers + archives + SPARE, shutil.disk_usage(home.path).free
    if free < needed:
        raise DiskFull(f"{home.path} has {free} bytes free, the back-up takes {needed}: free some")


async def _streams(stage: Path, directory: Path, manifest: Manifest) -> None:
    async with _broker(stage) as wire:
        for kept in manifest.streams:
            archive = pieces(stream_file(directory, kept.name, STREAM_DATA))
            state = await snapshots.give(wire, kept.name, _head(kept), archive)
            _same(kept, state)


def _head(kept: Kept) -> dict[str, Any]:
    """One copy of each: there is one server. The control plane asks for more where there are more."""
    return {"config": {**kept.config, "num_replicas": 1}, "state": kept.state}


def _same(kept: Kept, state: dict[str, Any]) -> None:
    """What was written while the snapshot was taken may have come along; nothing may be missing."""
    if state["last_seq"] < kept.state["last_seq"]:
        raise InfraError(f"stream {kept.name} ends at {state['last_seq']}, not {kept.state['last_seq']}")


@dataclass(frozen=True, slots=True)
class _Alone(BrokerAuth):
    """One user, who may do everything: nobody else knows of this broker."""

    def config(self) -> dict[str, Any]:
        return {"accounts": {ACCOUNT: {"jetstream": "enabled", "users": [{"nkey": self.iam}]}, "$SYS": {}}}


@contextlib.asynccontextmanager
async def _broker(stage: Path) -> AsyncIterator[Wire]:
    me = Credentials.new(Role.IAM)
    async with (
        Broker.running(stage / "broker", auth=_Alone("", me.public)) as broker,
        Wire.connect(broker.url, me, "restore") as wire,
    ):
        yield wire


async def _images(home: Home, directory: Path, manifest: Manifest) -> None:
    for node, layers in manifest.images.items():
        async with catalog(home, node) as images:
            for layer in layers:
                await images.take(layer, layer_file(directory, layer.digest))


def _put(stage: Path, home: Home, manifest: Manifest) -> None:
    """The last step: the streams appear, all at once."""
    home.broker.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(home.broker / MARK, json.dumps({"id": manifest.id, "made": manifest.made}) + "\n")
    target = home.broker / "jetstream"
    if target.exists():
        shutil.rmtree(target)  # without a stream in it
    (stage / "broker" / "jetstream").rename(target)
