"""What core answers about batches and jobs, and the batches it carries out.

A batch create is acknowledged when its state says that every id can be read, whichever core carries it out.
What is done to a job goes to every node in one message each, all at once; a node does its own part.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Final, Literal

from dsec.bus import ids, operation, subjects
from dsec.bus.audit import Auditor
from dsec.bus.core.claims import Claims
from dsec.bus.core.jobs import scheduling
from dsec.bus.core.jobs.charging import Charging, Quotas
from dsec.bus.core.jobs.execute import Execution, new_batch
from dsec.bus.core.jobs.messages import (
    Batch,
    BatchCounts,
    BatchOrder,
    CreateBatch,
    JobStatus,
    NodeJob,
    NodeJobAnswer,
    Phase,
    StatJob,
)
from dsec.bus.core.jobs.queue import Queue
from dsec.bus.core.jobs.runs import size_of
from dsec.bus.core.jobs.store import Kept, Store
from dsec.bus.core.jobs.template import digest, parse_batch
from dsec.bus.errors import Conflict, DeadlineExceeded, DsecError, GoneError, InfraError
from dsec.bus.handlers import Call, Handler, decode, ok, result, typed
from dsec.bus.messages import State
from dsec.bus.metrics import names
from dsec.bus.metrics.figures import Sample
from dsec.bus.nats.directget import DirectGet
from dsec.bus.registry import Registry
from dsec.bus.transport import Bus, Received
from dsec.bus.workload import workload_of

Verb = Literal["pause", "resume", "kill", "stat"]
log = logging.getLogger(__name__)

BATCHES: Final = 8
"""Batches that one core carries out at a time."""
ALIVE_EVERY: Final = 1.0
ANSWER_WITHIN: Final = 6.0
"""Seconds that a call is held; the client asks again under the same key."""
POLL: Final = (0.01, 0.2)
AT_ONCE: Final = 256
ENDED: Final = frozenset({State.FAILED, State.DESTROYED})
NAMED: Final = 100
"""Sandboxes that an answer names as failed."""


class Jobs:
    """Core's part in batches and jobs; made by `running`."""

    def __init__(
        self, bus: Bus, reader: DirectGet, auditor: Auditor, queue: Queue, quotas: Quotas | None
    ) -> None:
        self._bus = bus
        self._auditor = auditor
        self._claims = Claims(bus, reader)
        self._registry = Registry(reader)
        self._store = Store(bus, reader)
        self._queue = queue
        self._quotas = quotas
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._figures = workload_of(bus).figures
        self._running = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, bus: Bus, reader: DirectGet, auditor: Auditor, quotas: Quotas | None = None
    ) -> AsyncIterator[Jobs]:
        """Carry out batches while the block runs; what is left at its end goes to another core."""
        async with contextlib.AsyncExitStack() as stack:
            queues = [await stack.enter_async_context(Queue.running(bus)) for _ in range(BATCHES)]
            jobs = cls(bus, reader, auditor, queues[0], quotas)
            stack.enter_context(jobs._figures.telling(jobs._samples))
            workers = [asyncio.create_task(jobs._work(queue)) for queue in queues]
            try:
                yield jobs
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    def handlers(self) -> dict[tuple[str, str], Handler]:
        """What a job's verbs are answered by."""
        return {("job", verb): typed(StatJob, getattr(self, verb)) for _, verb in subjects.JOB_VERBS}

    # --- batches

    async def create(self, call: Call, request: CreateBatch) -> bytes | None:
        """The Batch, once every id can be read; the same one for a repeated key.

        Raises UnknownField and SpecError naming the field, Unsupported, Conflict.
        """
        at = call.address
        job = request.job or request.spec.get("job") or ids.job_of(request.op)
        spec = await parse_batch(request, ids.check("job", job))
        await self._claims.claim(at.project, request.op, digest(at.principal, request, spec))
        order = BatchOrder(
            project=at.project,
            principal=at.principal,
            job=job,
            op=request.op,
            count=request.count,
            spec=spec.model_dump(mode="json"),
            overrides=request.overrides,
            traceparent=operation.traceparent(),
        )
        kept = await self._store.get(at.project, job, request.op)
        if kept is None or not kept.batch.owner:
            with contextlib.suppress(Conflict):  # made by the core that got the same call before
                await self._store.put(Kept(new_batch(order)))
            await self._queue.put(order)
            self._auditor.note(at, call.subject, outcome="ok", target=job, detail=f"batch of {request.count}")
        batch = await self._placed(at.project, job, request)
        return None if batch is None else ok(batch)

    async def _placed(self, project: str, job: str, request: CreateBatch) -> Batch | None:
        until = min(request.deadline / 1000, time.time() + ANSWER_WITHIN)
        pause = POLL[0]
        while time.time() < until:
            kept = await self._store.get(project, job, request.op)
            if kept is not None and kept.batch.phase is not Phase.PLACING:
                return kept.batch
            await asyncio.sleep(pause)
            pause = min(POLL[1], 2 * pause)
        return None

    async def _work(self, queue: Queue) -> None:
        prepared = False
        while True:
            try:
                if not prepared:
                    await queue.prepare()
                    prepared = True
                order = await queue.take()
                if order is not None:
                    await self._carry_out(queue, order)
            except InfraError as error:
                log.info("the queue of batches: %s", error)
                await asyncio.sleep(1.0)
            except Exception:
                log.exception("a batch")
                await asyncio.sleep(1.0)

    async def _carry_out(self, queue: Queue, message: Received) -> None:
        order = decode(BatchOrder, message.data)
        alive = asyncio.create_task(_keep(queue, message))
        self._running += 1
        try:
            charging = None if self._quotas is None else Charging(order, self._claims, self._quotas)
            with operation.about(
                order.traceparent,
                op=order.op,
                project=order.project,
                principal=order.principal,
                job=order.job,
            ):
                self._count(await Execution(self._bus, self._store, order, charging).run())
        finally:
            self._running -= 1
            alive.cancel()
            await asyncio.gather(alive, return_exceptions=True)
        await queue.done(message)

    def _samples(self) -> Iterator[Sample]:
        yield names.BATCHES_RUNNING, (), self._running
        yield names.BATCHES, (), 0

    def _count(self, batch: Batch | None) -> None:
        """A batch is done here, unless another core has it."""
        if batch is None:
            return
        self._figures.count(names.BATCHES)
        ran = size_of(batch.running)
        self._figures.count(names.BATCH_SANDBOXES, "ran", by=ran)
        self._figures.count(names.BATCH_SANDBOXES, "failed", by=batch.count - ran)

    async def cancel(self, call: Call, request: StatJob) -> bytes:
        """What no node has begun of the job's batches, or of this one, is not created any more; what runs,
        runs on."""
        at = call.address
        if request.batch is None:
            await self._cancel(at.project, at.job)
        else:
            await self._cancel_batch(await self._store.get(at.project, at.job, request.batch))
        self._auditor.note(at, call.subject, outcome="ok", target=at.job)
        return ok(await self._status(at.project, at.job, {}))

    async def _cancel(self, project: str, job: str) -> None:
        for kept in await self._store.of_job(project, job):
            await self._cancel_batch(kept)

    async def _cancel_batch(self, kept: Kept | None) -> None:
        while kept is not None and not (kept.batch.cancelled or kept.batch.phase is Phase.DONE):
            batch = kept.batch.model_copy(update={"cancelled": True})
            try:
                kept = await self._store.put(Kept(batch, kept.revision))
            except Conflict:
                kept = await self._store.get(batch.project, batch.job, batch.op)

    # --- jobs

    async def stat(self, call: Call, request: StatJob) -> bytes:
        """A JobStatus, or with `batch` the Batch. Raises GoneError for a batch that is not remembered."""
        at = call.address
        if request.batch is not None:
            kept = await self._store.get(at.project, at.job, request.batch)
            if kept is None:
                raise GoneError(f"no batch {request.batch} of {at.job}", field="batch")
            return ok(kept.batch)
        return ok(await self._everywhere(call, "stat", request))

    async def pause(self, call: Call, request: StatJob) -> bytes:
        """Every sandbox of the job that runs now is frozen; repeatable."""
        return await self._operate(call, "pause", request)

    async def resume(self, call: Call, request: StatJob) -> bytes:
        """Every paused sandbox of the job runs on; repeatable."""
        return await self._operate(call, "resume", request)

    async def kill(self, call: Call, request: StatJob) -> bytes:
        """Its batches are cancelled and all its sandboxes destroyed; repeatable."""
        await self._cancel(call.address.project, call.address.job)
        return await self._operate(call, "kill", request)

    async def _operate(self, call: Call, verb: Verb, request: StatJob) -> bytes:
        status = await self._everywhere(call, verb, request)
        at, missed = call.address, len(status.failed) + len(status.unreached)
        outcome = "ok" if not missed else InfraError.code
        self._auditor.note(at, call.subject, outcome=outcome, target=at.job)
        return ok(status)

    async def _everywhere(self, call: Call, verb: Verb, request: StatJob) -> JobStatus:
        at = call.address
        body = NodeJob(op=request.op, deadline=request.deadline, project=at.project, job=at.job, verb=verb)
        data = body.model_dump_json().encode()
        known = await scheduling.nodes(self._bus)
        answers = await asyncio.gather(*(self._at(node, data) for node in known))
        return await self._status(at.project, at.job, dict(zip(known, answers, strict=True)))

    async def _at(self, node: str, data: bytes) -> NodeJobAnswer | None:
        """The node's answer, None when there is none."""
        async with self._gate:
            try:
                answer = await self._bus.request(subjects.node_op(node), data, timeout=10.0)
                return NodeJobAnswer.model_validate(result(answer.data))
            except DsecError as error:
                log.info("%s: %s", node, error)
                return None

    async def _lives_on(self, project: str, job: str, node: str) -> bool:
        """Whether a node that does not answer may hold something of the job."""
        records = await self._registry.on_node(project, node)
        return any(one.spec.job == job and one.state not in ENDED for one in records)

    async def _status(self, project: str, job: str, answers: dict[str, NodeJobAnswer | None]) -> JobStatus:
        heard = [answer for answer in answers.values() if answer is not None]
        states = sum((Counter(answer.states) for answer in heard), Counter())
        batches = await self._store.of_job(project, job)
        return JobStatus(
            job=job,
            states=dict(states),
            busy=sum(answer.busy for answer in heard),
            unreached=[
                node
                for node, answer in answers.items()
                if answer is None and await self._lives_on(project, job, node)
            ],
            failed=[one for answer in heard for one in answer.failed][:NAMED],
            batches=[counts(kept.batch) for kept in batches],
        )


def counts(batch: Batch) -> BatchCounts:
    """The batch in short."""
    failures: Counter[str] = Counter()
    for failed in batch.failed:
        failures[failed.error["failure"]] += size_of(failed.runs)
    return BatchCounts.model_validate(
        {
            **batch.model_dump(include={"op", "phase", "cancelled", "count"}),
            "running": size_of(batch.running),
            "failures": failures,
        }
    )


async def _keep(queue: Queue, message: Received) -> None:
    while True:
        with contextlib.suppress(InfraError, DeadlineExceeded):
            await queue.working(message)
        await asyncio.sleep(ALIVE_EVERY)
