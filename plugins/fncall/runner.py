"""A program with its files in a box of the right worker, when there is room: what single calls and judges
share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dsec.bus.caller import CallLimits
from dsec.bus.errors import TooLarge
from dsec.bus.spec import Image
from dsec.plugins.fncall.artefacts import LONGEST
from dsec.plugins.fncall.boxes import Box
from dsec.plugins.fncall.channel import memory
from dsec.plugins.fncall.devices import Device
from dsec.plugins.fncall.pool import Pool
from dsec.plugins.fncall.programs import Program
from dsec.plugins.fncall.room import Room
from dsec.plugins.fncall.running import Outcome, opened, run
from dsec.plugins.fncall.settings import Settings
from dsec.plugins.fncall.worker import Key

MOST_RESULT: Final = 640 * 1024
"""Bytes of what a function returns, as JSON."""


@dataclass(slots=True)
class Ran:
    """What came of it; `result`: what a function's child wrote of its end, not to be trusted."""

    outcome: Outcome
    warm: bool
    result: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Home:
    """Whose program it is, in which image."""

    project: str
    image: Image
    device: Device | None = None


class Runner:
    """Programs of one node."""

    def __init__(self, pool: Pool, room: Room, settings: Settings) -> None:
        self._pool = pool
        self._room = room
        self._settings = settings

    async def run(
        self,
        home: Home,
        program: Program,
        limits: CallLimits,
        deadline: float,
        *,
        stdin: bytes = b"",
        collect: Sequence[str] = (),
        longest: int = LONGEST,
        patience: float | None = None,
    ) -> Ran:
        """Run it once; files in `collect`, of `longest` bytes together, are read when it has ended,
        those that are there.

        Raises what the parts raise: NoCapacity, Overloaded, NoSuchImage, SpecError, LimitError, NoSuchFile…
        """
        key = Key(home.project, home.image, program.imports, home.device)
        left = max(0.0, deadline - time.time())
        patience = min(left, self._settings.patience if patience is None else patience)
        async with (
            self._room.taken(home.project, limits.memory, patience),
            self._pool.worker(key) as (worker, warm),
            worker.box(limits.tmp) as box,
        ):
            box.place.limit(memory=limits.memory, pids=limits.pids, cpu=limits.cpu)
            for name, (content, mode) in program.files.items():
                await box.put(name, content, mode)
            result, given = memory("result"), memory("stdin", stdin)
            with opened(result, given):
                files: dict[str, bytes] = {}

                async def after() -> None:
                    files.update(await _collected(box, collect, longest))

                begin = program.begin(worker, box, limits, result)
                outcome = await run(box, begin, given, limits, after if collect else None)
                return Ran(outcome, warm, _bounded(result), files)


async def _collected(box: Box, names: Sequence[str], longest: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in dict.fromkeys(names):
        content = await box.get(name, longest - sum(map(len, found.values())))
        if content is not None:
            found[name] = content
    return found


def _bounded(result: int) -> bytes:
    content = os.pread(result, MOST_RESULT + 1, 0)
    if len(content) > MOST_RESULT:
        raise TooLarge(f"the function returned over {MOST_RESULT} bytes of JSON: use files", field="value")
    return content
