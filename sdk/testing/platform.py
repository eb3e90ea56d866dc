"""The whole platform, or a part of it, as a child process: for conformance tests, benchmarks and examples."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from dsec.bus import subjects
from dsec.bus.errors import InfraError
from dsec.bus.home import default_node
from dsec.bus.ids import driver_on
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Received
from dsec.sdk import Client
from dsec.sdk.testing import pace

READY = pace.within(60)
"""Seconds that a part may take to be ready."""


class Part:
    """One `dsec` process that has told that it is ready."""

    def __init__(self, process: Process, ready: dict[str, Any]) -> None:
        self.process = process
        self.ready = ready

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    @property
    def credentials(self) -> Path:
        """Credential file of the first principal."""
        return Path(self.ready["credentials"])

    def client(self) -> Client:
        return Client(self.url, self.credentials)

    async def kill(self) -> None:
        """`kill -9`, as the faults under test do it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self, within: float = pace.within(30)) -> None:
        """End it cleanly. Raises InfraError when it takes longer than `within` seconds."""
        if self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), within)
        except TimeoutError:
            await self.kill()
            raise InfraError(f"a dsec process did not end within {within} s of SIGTERM") from None


async def spawn(
    home: Path, *, only: str | None = None, options: Sequence[str] = (), within: float = READY
) -> Part:
    """Start `dsec up` on `home`. Raises InfraError with the end of its log when it is not ready in time."""
    chosen = ["--only", only] if only else []
    argv = ["up", "--home", str(home), "--json", *options, *chosen]
    return await started(argv, home / f"up-{only or 'all'}.log", within)


async def spawn_driver(home: Path, name: str, *, options: Sequence[str] = (), within: float = READY) -> Part:
    """Start the driver `name` of this machine's node in a process of its own; its credentials are made when
    there are none. Raises InfraError."""
    if not (home / "credentials" / f"{driver_on(default_node(), name)}.json").exists():
        await command("plugin", "add", "--home", str(home), name)
    argv = ["plugin", "run", "--home", str(home), "--json", "--kind", "driver", *options, name]
    return await started(argv, home / f"driver-{name}.log", within)


async def started(argv: Sequence[str], log: Path, within: float = READY) -> Part:
    """A `dsec` process that has printed its ready line; its messages go to `log`. Raises InfraError."""
    await asyncio.to_thread(log.parent.mkdir, parents=True, exist_ok=True)
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "dsec.sdk.cli", *argv),
            stdout=PIPE,
            stderr=errors,
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ},
        )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), within)
        return Part(process, orjson.loads(line))
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())
        if not isinstance(error, TimeoutError | orjson.JSONDecodeError):
            raise
        tail = log.read_bytes()[-2000:].decode(errors="replace")
        raise InfraError(f"dsec {argv[0]} is not ready; the end of {log}:\n{tail}") from None


@contextlib.asynccontextmanager
async def running(
    home: Path, *, only: str | None = None, options: Sequence[str] = (), driver: str = ""
) -> AsyncIterator[Part]:
    """`dsec up` while the block runs; `driver` in a process of its own, which ends last."""
    apart = ["--without-driver", driver] if driver else []
    part = await spawn(home, only=only, options=[*options, *apart])
    beside: Part | None = None
    try:
        if driver:
            beside = await spawn_driver(home, driver)
            await known(part, driver)
        yield part
    finally:
        await part.stop()
        if beside is not None:
            await beside.stop()


async def known(part: Part, driver: str, within: float = pace.within(20)) -> None:
    """Return when sandboxes of the backend can be made. Raises InfraError when they cannot in time."""
    operator = Credentials.load(Path(part.ready["home"]) / "credentials" / "operator.json")
    heard = asyncio.Event()

    def hear(message: Received) -> None:
        if driver in orjson.loads(message.data)["backends"]:
            heard.set()

    async with Wire.connect(part.url, operator, "conformance") as wire:
        await wire.subscribe(subjects.ALL_HEARTBEATS, hear)
        try:
            await asyncio.wait_for(heard.wait(), within)
        except TimeoutError:
            raise InfraError(f"no node has the backend {driver}") from None


async def command(*argv: str) -> str:
    """Run `dsec ARGV…` to its end and return what it printed. Raises InfraError when it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dsec.sdk.cli", *argv, stdout=PIPE, stderr=PIPE
    )
    out, err = await process.communicate()
    if process.returncode:
        raise InfraError(f"dsec {' '.join(argv)} failed: {err.decode(errors='replace')}")
    return out.decode()
