"""Core: admits creates, claims their keys, has them placed and hands them to a node.

Core keeps no state of sandboxes: the id it makes carries the node, the node answers the caller itself, and
everything later goes to the node directly. Any number of cores share one queue group; each can be killed at
any time, and a retry with the same key finds what it left behind (`claims`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import orjson

from dsec.bus import ids, operation, subjects
from dsec.bus.audit import Auditor
from dsec.bus.core.claims import Claim, Claims
from dsec.bus.core.jobs.messages import CreateBatch
from dsec.bus.core.jobs.service import Jobs
from dsec.bus.core.orders import Wanted, packed, wanted
from dsec.bus.core.outlook import Outlook
from dsec.bus.core.placing import Placer
from dsec.bus.core.quotas import Quotas
from dsec.bus.core.shedding import MOST, Shedder
from dsec.bus.errors import DeadlineExceeded, DsecError, GoneError, NoCapacity, NodeLost, Overloaded
from dsec.bus.handlers import (
    Call,
    Handler,
    chain,
    check_reply,
    decode,
    in_time,
    ok,
    serving,
    serving_internal,
    typed,
)
from dsec.bus.host import Context
from dsec.bus.messages import CreateSandbox, ListSandboxes, NodeCreate, Place, Record, Veto
from dsec.bus.metrics.figures import Sample
from dsec.bus.metrics.names import ADMISSION_DELAY
from dsec.bus.metrics.streams import Streams
from dsec.bus.nats.appender import Appender
from dsec.bus.nats.directget import DirectGet
from dsec.bus.registry import Page, Registry
from dsec.bus.spec import Spec
from dsec.bus.transport import Bus, Received
from dsec.bus.workload import workload_of

QUEUE: Final = "core"
CONCURRENCY: Final = 4 * MOST
"""So that what one project may have at once, a quarter, is what the shedder lets in."""
RETRY_AFTER: Final = 0.5
SCANS: Final = 10
"""Reads of the registry, of 1,000 records each, that one page of a list may cost."""


class Core:
    """Answers sandbox.create, sandbox.list and the nodes' vetoes."""

    def __init__(
        self, bus: Bus, reader: DirectGet, placer: Placer, auditor: Auditor, claims: Claims, quotas: Quotas
    ) -> None:
        self._bus = bus
        self._placer = placer
        self._claims = claims
        self._quotas = quotas
        self._registry = Registry(reader)
        self._outlook = Outlook(bus)
        self._auditor = auditor

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus, context: Context) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            appender = await stack.enter_async_context(Appender.running(bus))
            reader = await stack.enter_async_context(DirectGet.running(bus))
            auditor = Auditor(appender, "core")
            placer = await stack.enter_async_context(Placer.running(bus))
            claims = Claims(bus, reader)
            quotas = await stack.enter_async_context(Quotas.running(bus, reader, claims))
            core = cls(bus, reader, placer, auditor, claims, quotas)
            jobs = await stack.enter_async_context(Jobs.running(bus, reader, auditor, quotas))
            gate, streams, figures = Gate(), Streams(bus), workload_of(bus).figures
            stack.enter_context(figures.telling(gate.samples))
            stack.enter_context(figures.telling(streams.samples, probe=streams.ask))
            one_or_many = either(typed(CreateSandbox, core.create), typed(CreateBatch, jobs.create))
            create = chain(one_or_many, gate.around, quotas.pacing, auditor.denials)
            verbs: dict[tuple[str, str], Handler] = {
                ("sandbox", "create"): create,
                ("sandbox", "list"): typed(ListSandboxes, core.list),
                **{asked: auditor.denials(handler) for asked, handler in jobs.handlers().items()},
            }
            for (noun, verb), handler in verbs.items():
                await stack.enter_async_context(
                    serving(
                        bus,
                        subjects.served(noun, verb),
                        handler,
                        queue=QUEUE,
                        concurrency=CONCURRENCY,
                        refused=auditor.refused,
                        shed=gate.shed if handler is create else None,
                    )
                )
            await stack.enter_async_context(
                serving_internal(bus, subjects.SCHED_VETO, core.vetoed, queue=QUEUE)
            )
            yield

    async def create(self, call: Call, request: CreateSandbox) -> None:
        """Order the sandbox from a node, which answers the caller; the same again for a repeated key."""
        project, principal = call.address.project, call.address.principal
        asked = wanted(principal, request.spec)
        claim, deadline = await self._claim(project, request, asked), request.deadline
        if not self._quotas.free(project):
            claim, deadline = await self._quotas.charge(claim, asked.spec, deadline)
        order = NodeCreate(
            op=request.op,
            deadline=deadline,
            project=project,
            principal=principal,
            sandbox=claim.sandbox,
            spec=asked.spec,
            secrets=request.secrets,
        )
        await self._forward(order, asked.json, call.reply)
        self._auditor.note(call.address, call.subject, outcome="ok", target=claim.sandbox)

    async def list(self, call: Call, request: ListSandboxes) -> bytes:
        """A page of the project's sandboxes; those of a node that is away read UNKNOWN."""
        project, registry = call.address.project, self._registry
        start = await registry.after(project, request.after) if request.after else request.cursor
        page = Page(request, start, max_bytes=self._bus.max_payload * 3 // 4)
        if request.sandbox is not None:
            one = await registry.get(project, request.sandbox)
            await self._offer(page, [] if one is None else [(0, one)])
            return ok(page.answer(more=False))
        for _ in range(SCANS):
            scan = await registry.scan(project, page.cursor)
            await self._offer(page, scan.records)
            if page.full or not scan.more:
                return ok(page.answer(more=False))
            page.cursor = scan.cursor
        return ok(page.answer(more=True))

    async def _offer(self, page: Page, records: Sequence[tuple[int, Record]]) -> None:
        seen = await self._outlook.over(record for _, record in records)
        for (sequence, _), record in zip(records, seen, strict=True):
            page.offer(sequence, record)

    async def vetoed(self, message: Received) -> bytes:
        """Place a vetoed order elsewhere. The node that vetoed answers its caller when this raises."""
        veto = decode(Veto, message.data)
        order = veto.order
        check_reply(veto.reply, order.principal)
        in_time(order)
        claim = await self._claims.get(order.project, order.op)
        if claim is None:
            raise GoneError("nobody claimed this order", field="op")
        if claim.sandbox == order.sandbox:
            excluded = (*order.excluded, ids.node_of(order.sandbox))
            try:
                claim = await self._place(claim, order.spec, order.deadline, excluded, veto.reason)
            except DsecError as error:
                self._given_up(order, error)
                raise
            again = order.model_copy(update={"sandbox": claim.sandbox, "excluded": excluded})
            await self._forward(again, again.spec.model_dump_json().encode(), veto.reply)
        return ok({"node": ids.node_of(claim.sandbox)})

    def _given_up(self, order: NodeCreate, error: DsecError) -> None:
        """Nobody takes a vetoed order: audited, which also ends its charge (`quotas`)."""
        who = subjects.Address("sandbox", "create", order.project, order.principal)
        self._auditor.note(
            who, subjects.SCHED_VETO, outcome=error.code, target=order.sandbox, detail=error.message
        )

    async def _claim(self, project: str, request: CreateSandbox, asked: Wanted) -> Claim:
        """The key's claim, naming a sandbox whose node can answer; a node is asked for before, so that one
        write both claims and places."""
        try:
            node = await self._placer.place(asked.place, request.deadline / 1000, request.op)
        except (NoCapacity, DeadlineExceeded):
            found = await self._claims.find(project, request.op, asked.digest)
            if found is None:
                raise
            claim, sandbox = found, ""
        else:
            sandbox = ids.sandbox_on(node)
            claim = await self._claims.claim(project, request.op, asked.digest, sandbox)
        if claim.sandbox and (claim.sandbox == sandbox or await self._held(claim)):
            return claim
        return await self._place(claim, asked.spec, request.deadline)

    async def _held(self, claim: Claim) -> bool:
        """Whether the claimed node can answer; of a sandbox that was declared failed nobody will.

        Raises NodeLost while its node is away with the sandbox on it: it may still run there.
        """
        node = ids.node_of(claim.sandbox)
        record = await self._registry.get(claim.project, claim.sandbox)
        if record is not None and record.fenced:
            return False
        try:
            await self._placer.alive(node)
        except NodeLost:
            if record is not None:
                raise
            return False
        return True

    async def _place(
        self, claim: Claim, spec: Spec, deadline: int, excluded: tuple[str, ...] = (), reason: str = ""
    ) -> Claim:
        limits = spec.limits
        place = Place(backend=spec.backend, cpu=limits.cpu, memory=limits.memory, excluded=excluded)
        try:
            node = await self._placer.place(place, deadline / 1000, claim.operation)
        except NoCapacity as error:
            raise NoCapacity(f"{error.message}{reason and ': '}{reason}", retry_after=RETRY_AFTER) from error
        return await self._claims.settle(claim, ids.sandbox_on(node))

    async def _forward(self, order: NodeCreate, spec: bytes, reply: str) -> None:
        subject = subjects.node_create(ids.node_of(order.sandbox))
        await self._bus.publish(subject, packed(order, spec), reply, operation.onward())


def either(one: Handler, many: Handler) -> Handler:
    """`many` for a request with a count, `one` for any other."""

    async def handle(call: Call) -> bytes | None:
        if not maybe_batch(call.data):
            return await one(call)
        try:
            body = orjson.loads(call.data)
        except orjson.JSONDecodeError:
            return await one(call)  # which tells what is wrong with it
        return await (many if isinstance(body, dict) and "count" in body else one)(call)

    return handle


def maybe_batch(data: bytes) -> bool:
    """Without reading the body; only a batch has a count, though a label may be called so too."""
    return b'"count"' in data


class Gate:
    """Sheds single creates and measures how long they take; batches take their time and are no measure."""

    def __init__(self) -> None:
        self._shedder = Shedder()

    def shed(self, message: Received) -> Overloaded | None:
        """See handlers.serving."""
        return None if maybe_batch(message.data) else self._shedder.error()

    def samples(self) -> Iterator[Sample]:
        """See Figures.telling."""
        yield ADMISSION_DELAY, (), self._shedder.delay() if self._shedder.in_hand else 0.0

    def around(self, handler: Handler) -> Handler:
        """Middleware."""

        async def handle(call: Call) -> bytes | None:
            if maybe_batch(call.data):
                return await handler(call)
            with self._shedder.passing():
                return await handler(call)

        return handle
