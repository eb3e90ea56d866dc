"""Creates and commands without a pause, each with a key, by which what failed is asked for again."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import Final

from dsec.bus.errors import DsecError
from dsec.bus.frames import Kind, unpack
from dsec.bus.nats.directget import DirectGet
from dsec.sdk import Client, Sandbox

WORKERS: Final = 6
PAUSE: Final = 0.02


@dataclass(slots=True)
class Load:
    """What was acknowledged: sandbox by key, and the exec and its sandbox by key. What was refused."""

    client: Client
    name: str
    made: dict[str, str] = field(default_factory=dict)
    ran: dict[str, tuple[str, str]] = field(default_factory=dict)
    errors: list[DsecError] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _last: float = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; what is under way then is finished."""
        self._last = time.monotonic()
        await asyncio.gather(*(self._worker(stop) for _ in range(WORKERS)))

    async def _worker(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            key = f"{self.name}-{next(self._numbers)}"
            sandbox = await self._created(key)
            for command in range(2):
                await self._ran(sandbox, f"{key}-{command}")
            await asyncio.sleep(PAUSE)

    async def _created(self, key: str) -> Sandbox:
        while True:
            try:
                sandbox = await self.client.create(backend="sim", image="any", key=key)
            except DsecError as error:
                self.errors.append(error)
            else:
                self.made[key] = sandbox.id
                self._moved()
                return sandbox

    async def _ran(self, sandbox: Sandbox, key: str) -> None:
        while True:
            try:
                result = await sandbox.run(["true"], key=key, durable=True)
            except DsecError as error:
                self.errors.append(error)
            else:
                self.ran[key] = (sandbox.id, result.exec)
                self._moved()
                return

    def _moved(self) -> None:
        now = time.monotonic()
        self.gaps.append(now - self._last)
        self._last = now

    async def asked_again(self) -> None:
        """Every key stands for what it stood for."""
        for key, sandbox in list(self.made.items())[-50:]:
            again = await self.client.create(backend="sim", image="any", key=key)
            if again.id != sandbox:
                self.doubled.append(key)

    async def lost(self, reader: DirectGet) -> list[str]:
        """Acknowledged commands whose end is not in the log, or whose log tells of two runs."""
        ends: dict[str, set[int]] = {}
        sequence = 1
        while True:
            batch = await reader.whole("EXEC", ">", sequence, count=1000, max_bytes=4 << 20)
            for stored in batch.messages:
                frame = unpack(stored.data)
                if frame.kind in {Kind.INLINE, Kind.EXIT}:
                    ends.setdefault(stored.subject.rpartition(".")[2], set()).add(frame.log)
            if not batch.pending or not batch.messages:
                return [key for key, (_, exec_) in self.ran.items() if len(ends.get(exec_, ())) != 1]
            sequence = batch.messages[-1].sequence + 1
