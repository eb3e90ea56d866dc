"""Core: admits creates, claims their keys, has them placed and hands them to a node.

Core keeps no state of sandboxes: the id it makes carries the node, the node answers the caller itself, and
everything later goes to the node directly. Any number of cores share one queue group; each can be killed at
any time, and a retry with the same key finds what it left behind (`claims`).
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Final

import orjson

from dsec.bus import ids, subjects
from dsec.bus.appender import Appender
from dsec.bus.audit import Auditor
from dsec.bus.claims import Claim, Claims
from dsec.bus.directget import DirectGet
from dsec.bus.errors import DeadlineExceeded, GoneError, NoCapacity, NodeLost, Overloaded
from dsec.bus.handlers import (
    Call,
    Handler,
    Middleware,
    chain,
    check_reply,
    decode,
    in_time,
    ok,
    result,
    serving,
    serving_internal,
    typed,
)
from dsec.bus.host import Context
from dsec.bus.jobs.messages import CreateBatch
from dsec.bus.jobs.service import Jobs
from dsec.bus.messages import CreateSandbox, ListSandboxes, NodeCreate, Place, Veto
from dsec.bus.registry import Page, Registry
from dsec.bus.spec import Spec, parse_spec
from dsec.bus.transport import Bus, Received

QUEUE: Final = "core"
MAX_CREATES: Final = 1024
"""Creates in one core's hands; at 5,000/s and 5 ms each some 25 are, so more means that it cannot keep up."""
RETRY_AFTER: Final = 0.5
SCANS: Final = 10
"""Reads of the registry, of 1,000 records each, that one page of a list may cost."""
ATTEMPT: Final = 2.0
"""Seconds that one scheduler has for its answer."""
LIVENESS: Final = 3.0
"""Seconds to wait for a scheduler's word on whether a node is alive; a fresh one listens before it speaks."""


class Core:
    """Answers sandbox.create, sandbox.list and the nodes' vetoes."""

    def __init__(self, bus: Bus, reader: DirectGet, auditor: Auditor) -> None:
        self._bus = bus
        self._claims = Claims(bus, reader)
        self._registry = Registry(reader)
        self._auditor = auditor

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus, context: Context) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            appender = await stack.enter_async_context(Appender.running(bus))
            reader = await stack.enter_async_context(DirectGet.running(bus))
            auditor = Auditor(appender, "core")
            core = cls(bus, reader, auditor)
            jobs = await stack.enter_async_context(Jobs.running(bus, reader, auditor))
            one_or_many = either(typed(CreateSandbox, core.create), typed(CreateBatch, jobs.create))
            create = chain(one_or_many, admission(MAX_CREATES), auditor.denials)
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
                        concurrency=2 * MAX_CREATES,
                        refused=auditor.refused,
                    )
                )
            await stack.enter_async_context(
                serving_internal(bus, subjects.SCHED_VETO, core.vetoed, queue=QUEUE)
            )
            yield

    async def create(self, call: Call, request: CreateSandbox) -> None:
        """Order the sandbox from a node, which answers the caller; the same again for a repeated key."""
        spec = parse_spec(request.spec)
        project, principal = call.address.project, call.address.principal
        claim = await self._claims.claim(project, request.op, digest(principal, spec))
        if not (claim.sandbox and await self._held(claim)):
            claim = await self._place(claim, spec, request.deadline)
        order = NodeCreate(
            op=request.op,
            deadline=request.deadline,
            project=project,
            principal=principal,
            sandbox=claim.sandbox,
            spec=spec,
            secrets=request.secrets,
        )
        await self._forward(order, call.reply)
        self._auditor.note(call.address, call.subject, outcome="ok", target=claim.sandbox)

    async def list(self, call: Call, request: ListSandboxes) -> bytes:
        """A page of the project's sandboxes."""
        project, registry = call.address.project, self._registry
        start = await registry.after(project, request.after) if request.after else request.cursor
        page = Page(request, start, max_bytes=self._bus.max_payload * 3 // 4)
        for _ in range(SCANS):
            scan = await registry.scan(project, page.cursor)
            for sequence, record in scan.records:
                page.offer(sequence, record)
            if page.full or not scan.more:
                return ok(page.answer(more=False))
            page.cursor = scan.cursor
        return ok(page.answer(more=True))

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
            claim = await self._place(claim, order.spec, order.deadline, excluded, veto.reason)
            again = order.model_copy(update={"sandbox": claim.sandbox, "excluded": excluded})
            await self._forward(again, veto.reply)
        return ok({"node": ids.node_of(claim.sandbox)})

    async def _held(self, claim: Claim) -> bool:
        """Whether the claimed node can answer. Raises NodeLost when it died with the sandbox on it."""
        node = ids.node_of(claim.sandbox)
        try:
            await self._ask_scheduler(Place(backend="", at=node), time.time() + LIVENESS)
        except NodeLost:
            if await self._registry.get(claim.project, claim.sandbox) is not None:
                raise
            return False
        return True

    async def _place(
        self, claim: Claim, spec: Spec, deadline: int, excluded: tuple[str, ...] = (), reason: str = ""
    ) -> Claim:
        limits = spec.limits
        place = Place(backend=spec.backend, cpu=limits.cpu, memory=limits.memory, excluded=excluded)
        try:
            node = await self._ask_scheduler(place, deadline / 1000)
        except NoCapacity as error:
            raise NoCapacity(f"{error.message}{reason and ': '}{reason}", retry_after=RETRY_AFTER) from error
        return await self._claims.settle(claim, ids.sandbox_on(node))

    async def _ask_scheduler(self, place: Place, until: float) -> str:
        """A scheduler that dies over the question does not answer it: then another one is asked."""
        data = place.model_dump_json().encode()
        while True:
            timeout = max(0.05, min(ATTEMPT, until - time.time()))
            try:
                answer = await self._bus.request(subjects.SCHED_PLACE, data, timeout=timeout)
                break
            except NodeLost as error:
                raise NoCapacity("no scheduler is running", retry_after=RETRY_AFTER) from error
            except DeadlineExceeded:
                if time.time() > until:
                    raise
        return str(result(answer.data)["node"])

    async def _forward(self, order: NodeCreate, reply: str) -> None:
        subject = subjects.node_create(ids.node_of(order.sandbox))
        await self._bus.publish(subject, order.model_dump_json().encode(), reply)


def digest(principal: str, spec: Spec) -> str:
    """What tells one request of a key from another; secrets are left out, so that nothing can leak."""
    body = [principal, spec.model_dump(mode="json")]
    return hashlib.blake2s(orjson.dumps(body, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def either(one: Handler, many: Handler) -> Handler:
    """`many` for a request with a count, `one` for any other."""

    async def handle(call: Call) -> bytes | None:
        if b'"count"' not in call.data:  # spares the hot path from reading the body twice
            return await one(call)
        try:
            body = orjson.loads(call.data)
        except orjson.JSONDecodeError:
            return await one(call)  # which tells what is wrong with it
        return await (many if isinstance(body, dict) and "count" in body else one)(call)

    return handle


def admission(limit: int) -> Middleware:
    """Shed what is over `limit` at once, before any work: past its capacity a queue only adds delay."""
    busy = 0

    def around(handler: Handler) -> Handler:
        async def handle(call: Call) -> bytes | None:
            nonlocal busy
            if busy >= limit:
                raise Overloaded("too many creates at once; try again", retry_after=RETRY_AFTER)
            busy += 1
            try:
                return await handler(call)
            finally:
                busy -= 1

        return handle

    return around
