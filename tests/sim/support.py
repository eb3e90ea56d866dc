"""A control plane as a process of its own, simulated nodes in this one or in another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from dsec.bus.home import Home
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.directget import DirectGet, Stored
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam import Iam
from dsec.plugins.sim import SimConfig, SimNode, fleet
from dsec.plugins.sim.fleet import names
from dsec.sdk import Client
from dsec.sdk.testing import platform

NODES = 3


@dataclass(slots=True)
class Plane:
    """A running control plane."""

    part: platform.Part
    home: Home

    def client(self) -> Client:
        return self.part.client()

    @contextlib.asynccontextmanager
    async def nodes(self, config: SimConfig | None = None) -> AsyncIterator[dict[str, SimNode]]:
        """The simulated nodes in this process, known to the scheduler; all tests have the same ones, since
        one that has ended gets work until it is suspect."""
        prepared = Iam.prepare(self.home, nodes=names(NODES))
        who = {name: prepared.credentials(name) for name in names(NODES)}
        async with fleet(self.part.url, who, self.home.part("sim"), config) as nodes:
            await asyncio.sleep(0.3)
            yield nodes

    async def stored(self, stream: str, subject: str) -> list[Stored]:
        """All messages of a stream that match."""
        who = Credentials.load(self.home.credentials / "operator.json")
        async with Wire.connect(self.part.url, who) as wire, DirectGet.running(wire) as reader:
            found: list[Stored] = []
            while True:
                at = found[-1].sequence + 1 if found else 1
                batch = await reader.batch(stream, subject, at, count=1000, max_bytes=4 << 20)
                found += batch.messages
                if not batch.pending or not batch.messages:
                    return found


@contextlib.asynccontextmanager
async def plane(path: Path) -> AsyncIterator[Plane]:
    async with platform.running(path, only="control") as part:
        yield Plane(part, Home(path))


async def spawn_sim(home: Path) -> Process:
    """`dsec sim` as a child that has told that it serves."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dsec.sdk.cli", "sim", "--home", str(home), "--nodes", str(NODES), "--json"),
        stdout=PIPE,
        stderr=DEVNULL,
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 30)
    assert line
    return process


async def end(process: Process, number: int = signal.SIGTERM) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)
    await process.wait()
