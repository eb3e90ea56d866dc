"""What the sandboxes of some projects use, folded from the registry.

A project is read once as a whole and followed from then on: a look reads what was written to the registry
since the last one, in its order and without a consumer. Nothing is read while nobody looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson

from dsec.bus import subjects
from dsec.bus.core.admission import NOTHING, Amount, thousandths
from dsec.bus.errors import InfraError
from dsec.bus.messages import State
from dsec.bus.nats.directget import DirectGet, Stored, answer_of, ask
from dsec.bus.spec import MIB
from dsec.bus.transport import Bus

_STREAM: Final = f"KV_{subjects.REGISTRY_BUCKET}"
_ALL: Final = ">"
_PAGE: Final = 1000
REMEMBERED: Final = 200_000
"""Sandboxes that are gone, which are told from those still to come."""
STALE: Final = 60.0
"""Seconds without a look after which the projects are read anew rather than caught up with."""


class Usage:
    """`registered` is told of each sandbox whose record was written, whatever it says."""

    def __init__(self, bus: Bus, reader: DirectGet, registered: Callable[[str], None]) -> None:
        self._bus = bus
        self._reader = reader
        self._registered = registered
        self._lock = asyncio.Lock()
        self._begun = self._done = 0
        self._looked = float("-inf")
        self._next = 0
        self._amounts: dict[str, Amount] = {}
        self._costs: dict[str, Amount] = {}
        self._ended: dict[str, None] = {}

    def of(self, projects: Iterable[str]) -> Amount:
        """What these projects use, as of the last look."""
        total = NOTHING
        for project in projects:
            total += self._amounts.get(project, NOTHING)
        return total

    def knows(self, sandbox: str) -> bool:
        """Whether the registry has, or lately had, a record of it, as of the last look."""
        return sandbox in self._costs or sandbox in self._ended

    async def look(self, projects: Iterable[str]) -> None:
        """See at least what the registry holds now, of `projects` and of those that were followed before.

        Raises BrokerDown, DeadlineExceeded.
        """
        wanted, asked = set(projects), self._begun
        async with self._lock:
            if self._done > asked and wanted <= self._amounts.keys():
                return
            self._begun += 1
            begun = self._begun
            await self._look(wanted)
            self._done, self._looked = begun, time.monotonic()

    async def _look(self, wanted: set[str]) -> None:
        if time.monotonic() - self._looked > STALE:
            self._amounts.clear()
            self._costs.clear()
            self._next = await self._end() + 1
        await self._read(_ALL, self._next)
        for project in wanted - self._amounts.keys():
            await self._follow(project)

    async def _follow(self, project: str) -> None:
        self._amounts[project] = NOTHING
        try:
            await self._read(subjects.kv(subjects.REGISTRY_BUCKET, f"{project}.>"), 1)
        except BaseException:
            self._looked = float("-inf")  # half a project must not pass for the whole: read all anew
            raise

    async def _read(self, subject: str, sequence: int) -> None:
        while True:
            batch = await self._reader.whole(_STREAM, subject, sequence, count=_PAGE, max_bytes=4 * MIB)
            for stored in batch.messages:
                self._fold(stored)
            if batch.messages:
                sequence = batch.messages[-1].sequence + 1
            if subject == _ALL:
                self._next = sequence
            if not batch.pending or not batch.messages:
                return

    def _fold(self, stored: Stored) -> None:
        _, _, project, _, sandbox = stored.subject.split(".")
        used = self._amounts.get(project)
        if used is None:
            return
        cost = cost_in(stored.data)
        self._amounts[project] = used - self._costs.pop(sandbox, NOTHING) + (cost or NOTHING)
        if cost is not None:
            self._costs[sandbox] = cost
        else:
            self._remember(sandbox)
        self._registered(sandbox)

    def _remember(self, sandbox: str) -> None:
        self._ended[sandbox] = None
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def _end(self) -> int:
        """The last sequence of the registry."""
        body = answer_of(await ask(self._bus, subjects.api(f"STREAM.INFO.{_STREAM}"), b""))
        try:
            return int(body["state"]["last_seq"])
        except KeyError as error:
            raise InfraError(f"the registry cannot be read: {body.get('error')}") from error


def cost_in(record: bytes) -> Amount | None:
    """What a record in the registry counts for: nothing once it failed; None when it is gone."""
    body: dict[str, Any] = orjson.loads(record) if record else {"state": State.DESTROYED}
    if body["state"] == State.DESTROYED:
        return None
    if body["state"] == State.FAILED:
        return NOTHING
    applied = body["applied"]
    return Amount(1, thousandths(applied.get("cpu") or 0.0), applied.get("memory") or 0)
