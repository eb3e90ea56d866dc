"""A warm worker: one stem, one zygote with libraries imported, and places with a box ready in each.

It belongs to one project, image and set of libraries, and is never shared beyond that. A place that a call
has left gets its next box at once, so that the next call finds it made.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from dsec.bus.driver import Images
from dsec.bus.errors import InfraError, SpecError
from dsec.bus.spec import Image
from dsec.bus.userns import UserNamespaces
from dsec.plugins.fncall.boxes import Box
from dsec.plugins.fncall.channel import Channel, Watched, close_all, memory, pair
from dsec.plugins.fncall.devices import Device
from dsec.plugins.fncall.groups import Groups, Place
from dsec.plugins.fncall.settings import MIB, Settings
from dsec.plugins.fncall.stem import ZYGOTE, Stem, order

IDS: Final = 65_536
TMP: Final = 64 * MIB
"""Bytes of /tmp of a box that is made before it is known for what."""
AT_LEAST: Final = 2
"""Places of a worker, so that calls one after the other find a box that is ready."""
PYTHON: Final = "/usr/bin/python3"
_SOURCE: Final = importlib.resources.files(__package__).joinpath("zygote.py").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Key:
    """What a worker is for; `imports` None: it has no zygote, for programs that are executed."""

    project: str
    image: Image
    imports: tuple[str, ...] | None
    device: Device | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    """What all workers of a node are made with; `program`: descriptor of a sealed copy of `native`."""

    groups: Groups
    namespaces: UserNamespaces
    program: int


class Zygote:
    """The forking Python of a worker. Numbers of calls are ours; who answers is not trusted."""

    def __init__(self, connection: Channel, process: Watched) -> None:
        self._channel = connection
        self._process = process
        self._calls: dict[int, Box] = {}
        self._next = 0
        self.failed: dict[int, str] = {}

    @property
    def alive(self) -> bool:
        return not self._process.gone.done()

    def fork(self, box: Box, header: dict[str, Any], fds: list[int]) -> None:
        """A child in `box`; `box.ended` tells its end. Raises InfraError."""
        self._next += 1
        self._calls[self._next] = box
        try:
            self._channel.send(orjson.dumps({"id": self._next, **header}), fds)
        except OSError as error:
            del self._calls[self._next]
            raise InfraError.during("a warm worker does not listen", error) from error

    def heard(self, told: dict[str, Any]) -> None:
        """How a child ended, or that it could not be begun."""
        box = self._calls.get(told.get("id", 0))
        if box is None or box.ended.done():
            return
        if "failed" in told:
            box.ended.set_exception(InfraError(f"a warm worker could not begin a call: {told['failed']}"))
            box.ended.exception()
        else:
            box.ended.set_result(int(told["status"]))
        del self._calls[told["id"]]

    def close(self) -> None:
        self._process.kill()
        self._channel.close()
        self._process.close()
        for box in self._calls.values():
            if not box.ended.done():
                box.ended.set_exception(InfraError("a warm worker ended; it is replaced"))
                box.ended.exception()
        self._calls.clear()


class Worker:
    """See the module; made by `started`."""

    def __init__(self, name: str, stem: Stem, groups: Groups) -> None:
        self.name = name
        self.zygote: Zygote | None = None
        self.used = time.monotonic()
        self.busy = 0
        self._stem = stem
        self._groups = groups
        self._free: list[tuple[Place, Box]] = []
        self._places: list[Place] = []
        self._spoiled = False

    @classmethod
    @contextlib.asynccontextmanager
    async def started(
        cls, key: Key, name: str, images: Images, tools: Tools, settings: Settings
    ) -> AsyncIterator[Worker]:
        """A worker on the root file system `name` of `images`; everything of it ends with the block.

        Raises NoSuchImage, SpecError (an import fails), DiskFull, NoCapacity, InfraError.
        """
        async with contextlib.AsyncExitStack() as stack:
            rootfs = await images.compose(name, key.image)
            stack.push_async_callback(images.release, name)
            stack.push_async_callback(_remove, tools.groups, name)
            files = tools.groups.worker(name, settings.worker_memory)
            given = key.device.arguments() if key.device is not None else []
            async with tools.namespaces.owned(rootfs.uid_base, IDS, owner=rootfs.uid_base) as userns:
                starting = Stem.started(tools.program, rootfs.path, userns, [*map(str, files), *given])
                stem = await stack.enter_async_context(starting)
            worker = cls(name, stem, tools.groups)
            stack.callback(worker._close)
            if key.imports is not None:
                async with asyncio.timeout(settings.warm_within):
                    worker.zygote = await _warm(stem, key.imports)
            yield worker

    @property
    def good(self) -> bool:
        """Whether it can take calls."""
        zygote = self.zygote is None or self.zygote.alive
        return self._stem.alive and zygote and not self._spoiled

    @contextlib.asynccontextmanager
    async def box(self, tmp: int) -> AsyncIterator[Box]:
        """A ready box for one call; everything inside has ended when the block has. Raises InfraError."""
        self.busy += 1
        place, box = self._free.pop(0) if self._free else self._another()
        if len(self._places) < AT_LEAST:
            self._free.append(self._another())
        try:
            if box.tmp != tmp or not box.good:
                box = await self._renewed(box, place, tmp)
            await box.ready()
            yield box
        finally:
            await asyncio.shield(self._leave(place, box))

    async def _leave(self, place: Place, box: Box) -> None:
        """The place is free again, with a new box on its way; if it cannot be freed, the worker is done
        for.
        """
        self.busy -= 1
        self.used = time.monotonic()
        box.kill()
        try:
            await box.gone()
        except InfraError:
            self._spoiled = True
            raise
        finally:
            box.close()
        if self.good:
            self._free.append((place, Box(self._stem, place, TMP)))

    async def _renewed(self, box: Box, place: Place, tmp: int) -> Box:
        with contextlib.suppress(InfraError):
            await box.ready()
        box.kill()
        await box.gone()
        box.close()
        return Box(self._stem, place, tmp)

    def _another(self) -> tuple[Place, Box]:
        place = self._groups.place(self.name, f"p{len(self._places)}")
        place.make()
        self._places.append(place)
        return place, Box(self._stem, place, TMP)

    def _close(self) -> None:
        if self.zygote is not None:
            self.zygote.close()
        for _, box in self._free:
            box.close()
        for place in self._places:
            place.close()


async def _remove(groups: Groups, name: str) -> None:
    until = time.monotonic() + 10.0
    while not groups.remove(name):
        if time.monotonic() > until:
            raise InfraError(f"the cgroups of {name} stay busy")
        await asyncio.sleep(0.005)


async def _warm(stem: Stem, imports: tuple[str, ...]) -> Zygote:
    """A zygote that has imported its libraries. Raises SpecError, InfraError."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[dict[str, Any]] = loop.create_future()
    zygote: list[Zygote] = []
    ours, theirs = pair()
    log = memory("zygote")

    def heard(data: bytes, fds: list[int]) -> None:
        close_all(fds)
        told = _decoded(data)
        if not first.done():
            first.set_result(told)
        elif zygote:
            zygote[0].heard(told)

    def ended() -> None:
        if not first.done():
            first.set_result({})
        elif zygote:
            zygote[0].close()

    channel = Channel(ours, heard, ended)
    try:
        argv = (PYTHON, "-I", "-c", _SOURCE, *imports)
        answer = await stem.ask(order(ZYGOTE, *argv), [theirs.fileno(), log])
        theirs.close()
        zygote.append(Zygote(channel, Watched(answer.fds[0])))
        _check(await first, os.pread(log, 4096, 0).decode(errors="replace"))
    except BaseException:
        theirs.close()
        for one in zygote:
            one.close()
        channel.close()
        raise
    finally:
        os.close(log)
    return zygote[0]


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        told = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return told if isinstance(told, dict) else {}


def _check(told: dict[str, Any], log: str) -> None:
    if "ready" in told:
        return
    if "broken" in told:
        error = told["broken"]
        raise SpecError(f"importing failed: {error.get('type')}: {error.get('message')}", field="imports")
    raise SpecError(f"the image has no Python that works: {log.strip()[-500:] or 'it ended'}", field="image")
