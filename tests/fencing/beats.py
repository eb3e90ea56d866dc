"""What tells that a sandbox runs: it writes the time into a file, and the tests read that on the machine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

from dsec.sdk import Sandbox
from tests.fencing.site import Site

BEAT = "while :; do date +%s.%N >>/beat; sleep 0.05; done"
LOOK = 0.05


class Beats:
    """The beats of one sandbox as they were seen, also after it is gone."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.times: list[float] = []

    async def watch(self) -> None:
        while True:
            with contextlib.suppress(FileNotFoundError):
                lines = self._file.read_text().splitlines(keepends=True)
                self.times = [float(line) for line in lines if line.endswith("\n")] or self.times
            await asyncio.sleep(LOOK)

    @property
    def silent(self) -> float:
        """Seconds since the last beat."""
        return time.time() - self.times[-1] if self.times else 0.0

    def gap(self, since: float) -> float:
        """The longest time without a beat from `since` (unix seconds) until now."""
        seen = [since, *(at for at in self.times if at > since), time.time()]
        return max(after - before for before, after in itertools.pairwise(seen))


@contextlib.asynccontextmanager
async def beating(site: Site, *sandboxes: Sandbox) -> AsyncIterator[list[Beats]]:
    """The sandboxes beat, and are watched while the block runs."""
    seen = [Beats(site.upper(one.record.node, one.id) / "beat") for one in sandboxes]
    for sandbox in sandboxes:
        await sandbox.start(BEAT, detach=True)
    watching = [asyncio.create_task(beats.watch()) for beats in seen]
    try:
        while not all(beats.times for beats in seen):  # noqa: ASYNC110 - a file tells nobody of its growth
            await asyncio.sleep(LOOK)
        yield seen
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
