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

from dsec.bus.errors import InfraError
from dsec.sdk import Client


class Part:
    """One `dsec up` process that has told that it is ready."""

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

    async def stop(self, within: float = 30.0) -> None:
        """End it cleanly. Raises InfraError when it takes longer than `within` seconds."""
        if self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), within)
        except TimeoutError:
            await self.kill()
            raise InfraError(f"dsec up did not end within {within} s of SIGTERM") from None


async def spawn(
    home: Path, *, only: str | None = None, options: Sequence[str] = (), within: float = 60
) -> Part:
    """Start `dsec up` on `home`. Raises InfraError with the end of its log when it is not ready in time."""
    await asyncio.to_thread(home.mkdir, parents=True, exist_ok=True)
    log = home / f"up-{only or 'all'}.log"
    argv = [sys.executable, "-m", "dsec.sdk.cli", "up", "--home", str(home), "--json", *options]
    argv += ["--only", only] if only else []
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=PIPE, stderr=errors, stdin=asyncio.subprocess.DEVNULL, env={**os.environ}
        )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), within)
        return Part(process, orjson.loads(line))
    except (TimeoutError, orjson.JSONDecodeError):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        tail = log.read_bytes()[-2000:].decode(errors="replace")
        raise InfraError(f"dsec up is not ready; the end of {log}:\n{tail}") from None


@contextlib.asynccontextmanager
async def running(home: Path, *, only: str | None = None, options: Sequence[str] = ()) -> AsyncIterator[Part]:
    """`dsec up` while the block runs."""
    part = await spawn(home, only=only, options=options)
    try:
        yield part
    finally:
        await part.stop()


async def command(*argv: str) -> str:
    """Run `dsec ARGV…` to its end and return what it printed. Raises InfraError when it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dsec.sdk.cli", *argv, stdout=PIPE, stderr=PIPE
    )
    out, err = await process.communicate()
    if process.returncode:
        raise InfraError(f"dsec {' '.join(argv)} failed: {err.decode(errors='replace')}")
    return out.decode()
