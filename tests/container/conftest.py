"""Real sandboxes for the tests of the container driver: base image, driver, commands inside."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dsec.bus import ids
from dsec.bus.chronus.guest import Command, Guest
from dsec.bus.driver import Handle, Order, Rootfs
from dsec.bus.spec import Limits, Spec
from dsec.plugins.container import ContainerDriver
from dsec.plugins.images import ErofsImages
from dsec.plugins.images.base import NAME, base_image

LIMITS = Limits(cpu=1.0, memory=256 << 20, pids=64, nofile=256)


@dataclass(frozen=True)
class Result:
    code: int | None
    signal: int | None
    out: str
    err: str


@dataclass
class Box:
    """A live sandbox and the one client of its inside."""

    name: str
    handle: Handle
    rootfs: Rootfs
    guest: Guest

    async def run(self, *argv: str, user: str = "root") -> Result:
        """One short command; its output must fit into a pipe."""
        done = await self.guest.start(ids.exec_of(ids.new_operation()), Command(argv=argv, user=user))
        try:
            end = await done.exited
            return Result(end.code, end.signal, _text(done.stdout), _text(done.stderr))
        finally:
            await done.release()

    async def python(self, source: str, *, user: str = "root") -> Result:
        return await self.run("python3", "-c", source, user=user)


def _text(pipe: int) -> str:
    chunks = []
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(pipe, 65_536):
            chunks.append(chunk)
    return b"".join(chunks).decode()


@dataclass
class Bench:
    """A driver and images in directories of their own."""

    driver: ContainerDriver
    images: ErofsImages

    async def rootfs(self, sandbox: str) -> Rootfs:
        return await self.images.compose(sandbox, Spec(image=NAME).image)

    @contextlib.asynccontextmanager
    async def box(self, limits: Limits = LIMITS, **spec: Any) -> AsyncIterator[Box]:
        name = ids.sandbox_on("n-test")
        rootfs = await self.rootfs(name)
        try:
            handle = await self.driver.create(order(name, limits, **spec), rootfs)
            guest = await Guest.connect(await self.driver.channel(name))
            try:
                yield Box(name, handle, rootfs, guest)
            finally:
                guest.close()
        finally:
            await self.driver.destroy(name)
            await self.images.release(name)

    async def clear(self) -> None:
        for name in await self.driver.leftovers():
            await self.driver.destroy(name)
        for name in await self.images.composed():
            await self.images.release(name)
        await self.driver.close()


def order(sandbox: str, limits: Limits = LIMITS, **spec: Any) -> Order:
    return Order(sandbox, Spec(image=NAME, **spec), limits)


@pytest.fixture(scope="session")
async def images(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ErofsImages]:
    async with ErofsImages(tmp_path_factory.mktemp("images")) as images:
        await images.import_file(NAME, await base_image(), "base")
        yield images


@pytest.fixture
async def bench(images: ErofsImages, tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(ContainerDriver(tmp_path / "driver"), images)
    await bench.driver.check()
    yield bench
    await bench.clear()


@pytest.fixture
async def box(bench: Bench) -> AsyncIterator[Box]:
    async with bench.box() as box:
        yield box
