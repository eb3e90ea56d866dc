"""The handler chain: how a message becomes a typed call and its result or error an answer.

A handler takes a `Call` and returns the answer's bytes, or None when somebody else answers the caller.
Guards, quotas, audit and metrics are handlers around handlers; the kernel does not know them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from dsec.bus import operation, subjects
from dsec.bus.errors import DeadlineExceeded, DsecError, ForgedReply, InfraError, SpecError, TooLarge
from dsec.bus.fairness import Shares
from dsec.bus.frames import unpack_data
from dsec.bus.messages import Request
from dsec.bus.metrics.figures import Tally
from dsec.bus.metrics.names import UNSERVED
from dsec.bus.trace import TRACEPARENT, accepted
from dsec.bus.transport import Bus, Received
from dsec.bus.workload import Endpoint, workload_of

log = logging.getLogger(__name__)
FINISH_WITHIN = 1.0
"""Seconds in which what was already taken off a queue may be answered when its server ends."""
ModelT = TypeVar("ModelT", bound=BaseModel)
RequestT_contra = TypeVar("RequestT_contra", bound=Request, contravariant=True)


class Call(NamedTuple):
    """One request on its way through the chain; of its headers only a valid `traceparent` is left."""

    address: subjects.Address
    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] | None = None


AskedT = TypeVar("AskedT", Call, Received)
Handler = Callable[[Call], Awaitable[bytes | None]]
InternalHandler = Callable[[Received], Awaitable[bytes | None]]
Middleware = Callable[[Handler], Handler]
Refusing = Callable[[Received], bytes | None]
Refused = Callable[[Received, DsecError], None]
"""Told of each message that got no answer because its subject or reply subject was refused."""


class TypedHandler(Protocol[RequestT_contra]):
    def __call__(self, call: Call, request: RequestT_contra, /) -> Awaitable[bytes | None]: ...


def ok(value: BaseModel | dict[str, Any] | list[Any] | None = None) -> bytes:
    """The answer `{"ok": value}`."""
    body = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return orjson.dumps({"ok": body})


def failed(error: DsecError) -> bytes:
    """The answer `{"error": …}`."""
    return orjson.dumps({"error": error.body()})


def result(answer: bytes) -> Any:
    """What a JSON answer says. Raises the error that it carries."""
    try:
        body = orjson.loads(answer)
        if "error" in body:
            raise DsecError.from_body(body["error"])
        return body["ok"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InfraError(f"not an answer: {answer[:80]!r}") from error


def decode(model: type[ModelT], data: bytes) -> ModelT:
    """`data` as `model`. Raises SpecError naming the field."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise SpecError(f"{field or 'body'}: {first['msg']}", field=field or None) from None


def in_time(request: Request, *, now: float | None = None) -> None:
    """Raises DeadlineExceeded when the request came too late to be begun."""
    late = (time.time() if now is None else now) * 1000 - request.deadline
    if late > 0:
        raise DeadlineExceeded(f"the deadline passed {late:.0f} ms ago; nothing was done", field="deadline")


def typed(
    model: type[RequestT_contra], handler: TypedHandler[RequestT_contra], *, raw: bool = False
) -> Handler:
    """`handler` with the request decoded and its deadline checked; `raw`: only the header is JSON."""

    async def handle(call: Call) -> bytes | None:
        request = decode(model, unpack_data(call.data)[0] if raw else call.data)
        in_time(request)
        return await handler(call, request)

    return handle


def check_reply(reply: str, principal: str) -> None:
    """Raises ForgedReply unless `reply` lies under the principal's own inbox (the confused deputy)."""
    if reply and not reply.startswith(subjects.inbox(principal) + "."):
        raise ForgedReply(f"reply subject {reply!r} is not under the caller's inbox", field="reply")


def chain(handler: Handler, *around: Middleware) -> Handler:
    """`handler` inside `around`, the first outermost."""
    for middleware in reversed(around):
        handler = middleware(handler)
    return handler


async def answer(
    handler: Callable[[AskedT], Awaitable[bytes | None]], call: AskedT, endpoint: Endpoint, tally: Tally
) -> bytes | None:
    """The handler's answer, errors included. Only a DsecError's text reaches the caller."""
    began = time.perf_counter_ns()
    operation.enter(call)
    try:
        return await handler(call)
    except DsecError as raised:
        error = raised
    except Exception:
        log.exception("internal error in %s", call.subject)
        error = InfraError("internal error of the platform; its log has the traceback")
    finally:
        took = endpoint.done(began)
        tally.took(took)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s took %.1f ms", call.subject, took / 1e6)
    endpoint.failed(error)
    tally.failed(error.code)
    log.debug("%s failed: %s: %s", call.subject, error.code, error.message)
    return failed(error)


@contextlib.asynccontextmanager
async def receiving(
    bus: Bus,
    subject: str,
    work: Callable[[Received], Awaitable[None]],
    *,
    queue: str = "",
    concurrency: int | None = 1024,
    endpoint: Endpoint | None = None,
    refuse: Refusing | None = None,
) -> AsyncIterator[None]:
    """Do `work` for each message of `subject` while the block runs, each in a task of its own.

    `concurrency` None: `work` itself decides when it begins; `endpoint`: it keeps these figures itself;
    `refuse`: what it answers a message with, before any work.
    On leaving, new messages stop first, then what runs has `FINISH_WITHIN` seconds before it is cancelled;
    `Workload.drain` gives it more.
    """
    load = workload_of(bus)
    gate = contextlib.nullcontext() if concurrency is None else load.gate or asyncio.Semaphore(concurrency)
    if endpoint is None:
        work = load.endpoint(subject, queue).counting(work, load.figures.request(*_named(subject)))
    running: set[asyncio.Task[None]] = set()

    async def one(message: Received) -> None:
        async with gate:
            await work(message)

    def receive(message: Received) -> None:
        refusal = None if refuse is None else refuse(message)
        doing = one(message) if refusal is None else _respond(bus, message.reply, refusal)
        task = asyncio.create_task(doing)
        running.add(task)
        task.add_done_callback(running.discard)

    subscription = await bus.subscribe(subject, receive, queue)
    load.opened(subject, subscription, running)
    try:
        yield
    finally:
        await subscription.drain()
        load.closed(subscription)
        if running:
            await asyncio.wait(running, timeout=FINISH_WITHIN)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def serving(
    bus: Bus,
    subject: str,
    handler: Handler,
    *,
    queue: str = "",
    concurrency: int = 1024,
    refused: Refused | None = None,
    shed: Callable[[Received], DsecError | None] | None = None,
) -> AbstractAsyncContextManager[None]:
    """Answer tenants' requests on `subject` while the block runs, each project within its share.

    `shed` tells with which error a request is answered at once, for next to nothing and without an audit.

    A forged reply subject gets no answer at all: answering it would be the attack. `refused` is told, so
    that the denial can be audited.
    """

    load = workload_of(bus)
    endpoint, shares, figures = load.endpoint(subject, queue), Shares(concurrency), load.figures

    async def fairly(call: Call) -> bytes | None:
        async with shares.place(call.address.project):
            if load.gate is None:
                return await handler(call)
            async with load.gate:
                return await handler(call)

    def refuse(message: Received) -> bytes | None:
        error = None if shed is None else shed(message)
        if error is None:
            return None
        try:
            at = _call(message).address
        except DsecError:
            return None  # not answered at all
        endpoint.failed(error)
        figures.request(at.noun, at.verb, at.project).refused(error.code)
        return failed(error)

    async def one(message: Received) -> None:
        try:
            call = _call(message)
        except DsecError as error:
            endpoint.failed(error)
            figures.count(UNSERVED)
            log.warning("refused %s: %s", message.subject, error)
            if refused is not None:
                refused(message, error)
            return
        at = call.address
        tally = figures.request(at.noun, at.verb, at.project)
        await _respond(bus, call.reply, await answer(fairly, call, endpoint, tally))

    return receiving(bus, subject, one, queue=queue, concurrency=None, endpoint=endpoint, refuse=refuse)


def serving_internal(
    bus: Bus, subject: str, handler: InternalHandler, *, queue: str = "", concurrency: int = 1024
) -> AbstractAsyncContextManager[None]:
    """Answer requests of the platform's own parts (`sched.*`, `node.*`) while the block runs.

    The broker lets nobody else publish there; the reply subject is the sender's own, or one it checked.
    """

    load = workload_of(bus)
    endpoint = load.endpoint(subject, queue)
    tally = load.figures.request(*_named(subject))

    async def one(message: Received) -> None:
        await _respond(bus, message.reply, await answer(handler, message, endpoint, tally))

    return receiving(bus, subject, one, queue=queue, concurrency=concurrency, endpoint=endpoint)


async def _respond(bus: Bus, reply: str, data: bytes | None) -> None:
    """Silence is for a broker that is gone; an answer that is too large is told as that."""
    if data is not None and reply:
        with contextlib.suppress(InfraError):
            try:
                await bus.publish(reply, data)
            except TooLarge as error:
                await bus.publish(reply, failed(error))


def _named(subject: str) -> tuple[str, str]:
    """How a subject is counted: what follows the first two tokens is a node, or another id."""
    noun, _, rest = subject.partition(".")
    return noun, rest.partition(".")[0]


def _call(message: Received) -> Call:
    address = subjects.parse(message.subject)
    check_reply(message.reply, address.principal)
    return Call(address, message.subject, message.reply, message.data, _traced(message))


def _traced(message: Received) -> dict[str, str] | None:
    """The caller's trace; a malformed one begins anew here."""
    traceparent = accepted(message.headers) if message.headers else ""
    return {TRACEPARENT: traceparent} if traceparent else None
