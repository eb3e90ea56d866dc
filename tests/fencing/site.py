"""A platform of processes in network namespaces, for tests that cut it apart."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from dsec.bus import subjects
from dsec.bus.errors import DsecError
from dsec.bus.handlers import result
from dsec.bus.home import Home
from dsec.bus.messages import Fleet, NodeStatus
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.directget import DirectGet, Stored
from dsec.bus.nats.wire import Wire
from dsec.sdk import Client
from tests.fencing.net import Net

ROOT = Path(__file__).parent.parent.parent


@dataclass(slots=True)
class Part:
    """One process."""

    process: Process
    ready: dict[str, Any]

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await asyncio.wait_for(self.process.wait(), 30)


@dataclass(slots=True)
class Site:
    """See `running`."""

    home: Home
    net: Net
    parts: dict[str, Part] = field(default_factory=dict)
    operator: Wire = field(init=False)

    @property
    def url(self) -> str:
        return str(self.parts["control"].ready["url"])

    @property
    def broker_pid(self) -> int:
        """Of the present server: the control plane starts one again that dies."""
        (broker,) = psutil.Process(self.parts["control"].process.pid).children()
        return int(broker.pid)

    def client(self, *, patience: float = 30.0) -> Client:
        return Client(self.url, self.parts["control"].ready["admin"], patience=patience)

    async def start(self, name: str, space: str, *argv: str) -> Part:
        """Start `tests.fencing.part` in a network namespace. Raises RuntimeError with its last words."""
        log = self.home.path / f"{name}.log"
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *("nsenter", f"--net=/run/netns/{space}", sys.executable, "-m", "tests.fencing.part"),
                *argv,
                stdout=PIPE,
                stderr=errors,
                cwd=ROOT,
            )
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        if not line:
            raise RuntimeError(f"{name} did not start:\n{log.read_text()[-3000:]}")
        part = self.parts[name] = Part(process, json.loads(line))
        return part

    async def start_control(self) -> Part:
        return await self.start(
            "control", self.net.control, "control", str(self.home.path), self.net.broker_host
        )

    async def start_watcher(self, name: str = "watcher") -> Part:
        return await self.start(name, self.net.control, "watcher", str(self.home.path), self.url)

    async def start_edge(self, node: str, space: str | None = None) -> Part:
        space = space or f"{self.net.tag}-{node}"
        return await self.start(node, space, "edge", str(self.home.path), self.url, node)

    async def fleet(self) -> dict[str, NodeStatus]:
        """Every node as the watcher sees it. Raises DsecError while nobody says."""
        answer = await self.operator.request(subjects.SCHED_FLEET, b"{}", timeout=2)
        return {node.node: node for node in Fleet.model_validate(result(answer.data)).nodes}

    async def operate(self, *argv: str) -> str:
        """`dsec node ARGV…` as the operator."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dsec.sdk.cli", "node", *argv, "--json"),
            *("--home", str(self.home.path), "--url", self.url),
            stdout=PIPE,
            stderr=PIPE,
        )
        out, err = await process.communicate()
        if process.returncode:
            raise RuntimeError(err.decode())
        return out.decode()

    async def stored(self, stream: str, subject: str) -> list[Stored]:
        """All messages of a stream that match."""
        async with DirectGet.running(self.operator) as reader:
            batch = await reader.batch(stream, subject, 1, count=10_000, max_bytes=64 << 20)
        return batch.messages

    def upper(self, node: str, sandbox: str) -> Path:
        """The sandbox's writable layer as this machine has it."""
        return self.home.images(node) / "sandboxes" / sandbox / "data" / "upper"


@contextlib.asynccontextmanager
async def running(path: Path, nodes: tuple[str, ...]) -> AsyncIterator[Site]:
    """Broker and control plane in one namespace with a watcher, each node in its own."""
    path.chmod(0o711)
    async with Net.running() as net:
        site = Site(Home(path), net)
        try:
            await site.start_control()
            spaces = {node: await net.add(node) for node in nodes}
            await site.start_watcher()
            await asyncio.gather(*(site.start_edge(node, space) for node, space in spaces.items()))
            who = Credentials.load(site.home.credentials / "operator.json")
            async with Wire.connect(site.url, who, "tests") as site.operator:
                yield site
        finally:
            await _end(site)


async def _end(site: Site) -> None:
    for node in [name for name in site.parts if name.startswith("n-")]:
        await site.net.join(node)
    if "control" in site.parts:
        os.kill(site.broker_pid, signal.SIGCONT)
    control = site.parts.pop("control", None)
    for part in reversed(site.parts.values()):
        await part.stop()
    if control is not None:
        await control.stop()


async def eventually(condition: Callable[[], Awaitable[bool]], *, within: float) -> float:
    """Seconds until `condition()` is true. Raises TimeoutError."""
    began = time.monotonic()
    while True:
        with contextlib.suppress(DsecError, KeyError):
            if await condition():
                return time.monotonic() - began
        if time.monotonic() - began > within:
            raise TimeoutError
        await asyncio.sleep(0.05)
