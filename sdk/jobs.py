"""Batches and jobs: thousands of sandboxes in one call, and all sandboxes of a job at once.

batch = await client.create_many(1000, image="debian-12-python", overrides={7: {"env": {"SEED": "7"}}})
async for sandbox in batch:        # as they come to run, in no particular order
    …
await client.job(batch.job).kill()
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final

from dsec.bus import ids, subjects
from dsec.bus.core.jobs.messages import Batch as BatchState
from dsec.bus.core.jobs.messages import JobStatus, Phase
from dsec.bus.core.jobs.runs import numbers_of, size_of
from dsec.bus.errors import DsecError, Failure, GoneError
from dsec.bus.messages import Record
from dsec.bus.transport import Received
from dsec.sdk.link import Link, new_operation
from dsec.sdk.sandbox import Sandbox

SILENCE: Final = 1.5
"""Seconds without a word on progress after which it is asked for."""
AHEAD: Final = 64
"""Sandboxes whose records are fetched before they are asked for."""
JOB_PATIENCE: Final = 300.0
JOB_ATTEMPT: Final = 30.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a batch is. `pending` are neither running nor failed; `failures` counts by class."""

    count: int
    pending: int
    running: int
    failed: int
    failures: dict[Failure, int]
    done: bool


class Batch:
    """Made by `Client.create_many`; `job` is its job, `key` its operation id.

    Iterating gives each sandbox once, as it comes to run, and ends when all have run or failed. Several
    iterators are independent of each other.
    """

    def __init__(self, link: Link, state: BatchState) -> None:
        self._link = link
        self._state = state

    def __len__(self) -> int:
        return self._state.count

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} {self.job} {self._state.phase}>"

    @property
    def job(self) -> str:
        return self._state.job

    @property
    def key(self) -> str:
        return self._state.op

    @property
    def ids(self) -> dict[int, str]:
        """The sandbox of each number; those without a node, of which nobody had room, are left out."""
        state = self._state
        return {
            number: ids.sandbox_of(state.nodes[node], state.project, state.op, number)
            for start, stop, node in state.placed
            for number in range(start, stop)
        }

    @property
    def failures(self) -> dict[int, DsecError]:
        """Why numbers failed, as far as it is known by now."""
        return {
            number: DsecError.from_body(failed.error)
            for failed in self._state.failed
            for number in numbers_of(failed.runs)
        }

    async def progress(self) -> Progress:
        """As the platform has it now. Raises GoneError a week after the batch's last change."""
        self._take(await self._asked())
        return progress_of(self._state)

    async def wait(self) -> Progress:
        """Return when all run or have failed."""
        async for _ in self._states():
            pass
        return progress_of(self._state)

    async def cancel(self) -> Progress:
        """Create no more of the batch: what nobody has begun fails as `cancelled`, the rest runs on."""
        subject = self._link.subject("job", "cancel", job=self.job)
        await self._link.call(subject, {"batch": self.key})
        return await self.wait()

    async def __aiter__(self) -> AsyncIterator[Sandbox]:
        seen: set[int] = set()
        fetching: deque[asyncio.Task[Sandbox | None]] = deque()
        try:
            async for state in self._states():
                names = self.ids
                for number in numbers_of(state.running):
                    if number in seen:
                        continue
                    seen.add(number)
                    fetching.append(asyncio.create_task(self._fetch(names[number])))
                    if len(fetching) >= AHEAD and (sandbox := await fetching.popleft()) is not None:
                        yield sandbox
                while fetching:
                    if (sandbox := await fetching.popleft()) is not None:
                        yield sandbox
        finally:
            for task in fetching:
                task.cancel()
            await asyncio.gather(*fetching, return_exceptions=True)

    async def _fetch(self, sandbox: str) -> Sandbox | None:
        """The sandbox, None when it was destroyed since it ran."""
        subject = self._link.subject("sandbox", "stat", sandbox)
        with contextlib.suppress(GoneError):
            return Sandbox(self._link, Record.model_validate(await self._link.call(subject, {})))
        return None

    async def _states(self) -> AsyncIterator[BatchState]:
        """The state now and after each change, until it is done."""
        news = asyncio.Event()

        def heard(message: Received) -> None:
            state = BatchState.model_validate_json(message.data)
            if state.op == self.key:
                self._take(state)
                news.set()

        subject = subjects.job_progress(self._link.project, self.job)
        subscription = await self._link.bus.subscribe(subject, heard)
        try:
            self._take(await self._asked())  # what was told before we listened
            while True:
                news.clear()
                yield self._state
                if self._state.phase is Phase.DONE:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SILENCE):
                        await news.wait()
                    continue
                self._take(await self._asked())
        finally:
            await subscription.unsubscribe()

    def _take(self, state: BatchState) -> None:
        """Progress may come late or twice; what has run or failed once stays so."""
        known = self._state
        if _settled(state) >= _settled(known) and not (
            known.phase is Phase.DONE and state.phase is not Phase.DONE
        ):
            self._state = state

    async def _asked(self) -> BatchState:
        subject = self._link.subject("job", "stat", job=self.job)
        return BatchState.model_validate(await self._link.call(subject, {"batch": self.key}))


class Job:
    """All sandboxes of one job id, however they were created; made by `Client.job`."""

    def __init__(self, link: Link, job: str) -> None:
        self.id = job
        self._link = link

    async def stat(self) -> JobStatus:
        """States of its sandboxes over all nodes, and its batches."""
        return await self._asked("stat")

    async def pause(self) -> JobStatus:
        """Freeze every sandbox that runs now, all at once; repeatable. `failed` tells which could not be."""
        return await self._asked("pause")

    async def resume(self) -> JobStatus:
        """Let every paused sandbox go on; repeatable."""
        return await self._asked("resume")

    async def kill(self) -> JobStatus:
        """Destroy every sandbox and cancel its batches; repeatable."""
        return await self._asked("kill")

    async def cancel(self) -> JobStatus:
        """Create no more of its batches; what runs, runs on."""
        return await self._asked("cancel")

    async def _asked(self, verb: str) -> JobStatus:
        """Asked again until nothing is busy with it. Raises NoCapacity when there is no scheduler,
        NodeLost when there is no core.
        """
        subject = self._link.subject("job", verb, job=self.id)
        until = asyncio.get_running_loop().time() + JOB_PATIENCE
        while True:
            answer = await self._link.call(
                subject, {}, op=new_operation(), attempt=JOB_ATTEMPT, patience=JOB_PATIENCE
            )
            status = JobStatus.model_validate(answer)
            if not status.busy or asyncio.get_running_loop().time() > until:
                return status


def progress_of(state: BatchState) -> Progress:
    """The counts in a batch's state."""
    failures: Counter[Failure] = Counter()
    for failed in state.failed:
        failures[Failure(failed.error["failure"])] += size_of(failed.runs)
    running, failed_ = size_of(state.running), failures.total()
    return Progress(
        count=state.count,
        pending=state.count - running - failed_,
        running=running,
        failed=failed_,
        failures=dict(failures),
        done=state.phase is Phase.DONE,
    )


def _settled(state: BatchState) -> int:
    return size_of(state.running) + sum(size_of(failed.runs) for failed in state.failed)


def overrides_of(given: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Overrides as they are sent: from a mapping by number, or a sequence with one for each number."""
    pairs = given.items() if isinstance(given, dict) else enumerate(given)
    return ((str(number), dict(override)) for number, override in pairs if override)
