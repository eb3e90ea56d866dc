"""The demo's own platform: `dsec up` as a child on a home of its own, with the layers of the tasks in it.

Nothing of it is left afterwards. A home that a killed run left behind is taken over first: its sandboxes are
recovered and destroyed like any others.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dsec.bus.errors import GoneError, InfraError
from dsec.bus.home import Home
from dsec.plugins.images import ErofsImages, base
from dsec.sdk.client import Client
from dsec.sdk.spec_args import ImageArgs

from . import material
from .tasks import Task

NODE = "n-demo"
DSEC = (sys.executable, "-m", "dsec.sdk.cli")
START = 60.0
"""Seconds until the platform must be up."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Names in the catalog; every name but the base's ends with a digest of its content."""

    base: str
    toolkit: str
    grader: str
    workspaces: dict[str, str]

    def solving(self, task: Task) -> ImageArgs:
        """What an agent gets."""
        return {"base": self.base, "workspace": self.workspaces[task.name], "toolkits": [self.toolkit]}

    def clean(self, task: Task, pack: str) -> ImageArgs:
        """What grading gets: the original layers, the pack, and the grader's own on top."""
        return {"base": self.base, "workspace": self.workspaces[task.name], "packs": [pack, self.grader]}


@asynccontextmanager
async def running(home: Home, tell: Callable[[str], None]) -> AsyncIterator[dict[str, Any]]:
    """`dsec up --home HOME` while the block runs, and its ready line. Raises InfraError."""
    log = home.path.parent / "dsec-up.log"
    with log.open("wb") as output:
        command = (*DSEC, "up", "--json", "--home", str(home.path), "--node", NODE)
        child = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=output, start_new_session=True
        )
    try:
        ready = await _ready(child, log)
        tell(f"dsec is up on {home.path}, its log is {log}")
        yield ready
    finally:
        await _end(child)


async def _ready(child: asyncio.subprocess.Process, log: Path) -> dict[str, Any]:
    assert child.stdout is not None
    try:
        async with asyncio.timeout(START):
            return dict(json.loads(await child.stdout.readline()))
    except (TimeoutError, ValueError) as error:
        told = log.read_text(errors="replace")[-1500:]
        raise InfraError(f"`dsec up` did not start, see {log}:\n{told}") from error


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        # Not child.terminate(), which polls first and may take the exit status away from the event loop.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(60):
            await child.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()


@asynccontextmanager
async def temporary(path: Path) -> AsyncIterator[Home]:
    """A home that is removed afterwards. Raises InfraError if something is still mounted below it then."""
    home = Home(path.resolve())
    home.path.mkdir(parents=True, exist_ok=True)
    try:
        yield home
    finally:
        await asyncio.to_thread(_remove, home.path)


def _remove(path: Path) -> None:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    if mounted := [point for point in points if point.startswith(f"{path}/")]:
        raise InfraError(f"still mounted, so {path} is kept: {', '.join(mounted[:5])}")
    shutil.rmtree(path)


@asynccontextmanager
async def connected(ready: Mapping[str, Any]) -> AsyncIterator[Client]:
    """A client of what is ready; every sandbox of the project is gone before and afterwards."""
    async with Client(ready["url"], ready["credentials"]) as client:
        await destroy_all(client)
        try:
            yield client
        finally:
            await destroy_all(client)


async def destroy_all(client: Client) -> None:
    async for record in client.list():
        with contextlib.suppress(GoneError):
            await (await client.attach(record.sandbox)).destroy()


async def import_layers(home: Home, tasks: Iterable[Task], tell: Callable[[str], None]) -> Layers:
    """Put every layer into the node's store, before the node starts; `dsec image import` does it by hand.

    Raises InfraError, MissingTool, DiskFull.
    """
    image = await base.base_image(tell)
    async with ErofsImages(home.images(NODE)) as store:
        await store.import_file(base.NAME, image, "base")
        workspaces = {
            task.name: await _layer(
                store, task.older.stem, "workspace", partial(material.workspace_layer, task)
            )
            for task in tasks
        }
        toolkit = await _layer(store, "pytest-toolkit", "toolkit", material.toolkit)
        grader = await _layer(store, "grader", "toolkit", material.grader)
    tell(f"layers: {base.NAME}, {', '.join(workspaces.values())}, {toolkit}, {grader}")
    return Layers(base.NAME, toolkit, grader, workspaces)


async def _layer(
    store: ErofsImages, stem: str, kind: Literal["workspace", "toolkit"], make: Callable[[Path], object]
) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch) / "layer"
        top.mkdir()
        await asyncio.to_thread(make, top)
        name = f"{stem}-{await asyncio.to_thread(_digest, top)}"
        await store.import_tree(name, top, kind)
    return name


def _digest(top: Path) -> str:
    """Eight hex digits over paths and contents."""
    found = hashlib.sha256()
    for path in sorted(path for path in top.rglob("*") if path.is_file()):
        data = path.read_bytes()
        found.update(f"{path.relative_to(top)}\0{len(data)}\0".encode() + data)
    return found.hexdigest()[:8]
