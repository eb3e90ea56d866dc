"""Requests of one principal: envelope, retries, errors.

A request keeps its operation id and its deadline over all attempts, so that the platform does the work once
however often it hears of it. What is tried again: an attempt that got no answer (`BrokerDown`, `NodeLost`,
`DeadlineExceeded` of the bus itself) and an answered `Overloaded`; every other answer is final.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import orjson

from dsec.bus import subjects
from dsec.bus.errors import (
    BrokerDown,
    DeadlineExceeded,
    DsecError,
    Failure,
    NoCapacity,
    NodeLost,
    Overloaded,
    SpecError,
    TooLarge,
)
from dsec.bus.frames import pack_data
from dsec.bus.handlers import result
from dsec.bus.messages import VERSION, Record, State
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Bus
from dsec.sdk import tracing

PATIENCE: Final = 30.0
"""Seconds until a request that nobody answers fails."""
ATTEMPT: Final = 5.0
"""Seconds that one attempt waits; answers take milliseconds, so a longer silence means that it was lost."""
_LEAST: Final = 0.1  # seconds: a shorter attempt says nothing
_ASIDE: Final = 2.0  # seconds for the registry's word between two attempts
_UNANSWERED: Final = (BrokerDown, NodeLost, DeadlineExceeded)
_ERROR_PREFIX: Final = b'{"error":'


def new_operation() -> str:
    """A fresh operation id: 96 random bits."""
    return secrets.token_hex(12)


def pauses(first: float = 0.05, last: float = 2.0) -> Iterator[float]:
    """Seconds between attempts: doubling to `last`, jittered by half so that clients do not march in step."""
    pause = first
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        pause = min(2 * pause, last)


def error_in(answer: bytes) -> DsecError | None:
    """The error that an answer carries; raw answers and `{"ok": …}` carry none."""
    if not answer.startswith(_ERROR_PREFIX):
        return None
    try:
        result(answer)
    except DsecError as error:
        return error
    return None


class Closing(Protocol):
    async def close(self) -> None: ...


class Link:
    """What all objects of one Client share. `readers` are open; the client closes those left over.
    `reconnected` are called when the connection is back after it was broken, and messages may be missing.
    """

    def __init__(
        self, bus: Bus, project: str, principal: str, *, patience: float = PATIENCE, trace: bool = False
    ) -> None:
        self.bus = bus
        self._trace = trace
        self.project = project
        self.principal = principal
        self.patience = patience
        self.readers: set[Closing] = set()
        self.reconnected: set[Callable[[], None]] = set()
        if isinstance(bus, Wire):
            bus.on_connected(self._back)

    def _back(self) -> None:
        for told in list(self.reconnected):
            told()

    def subject(
        self,
        noun: str,
        verb: str,
        sandbox: str | None = None,
        exec_: str | None = None,
        *,
        job: str | None = None,
    ) -> str:
        """The subject of a request of this principal. Raises BadId."""
        return subjects.request(noun, verb, self.project, self.principal, sandbox, exec_, job=job)

    async def call(self, subject: str, body: dict[str, Any], **options: Any) -> Any:
        """Like `ask`, for requests that are answered with JSON: what stands under `ok`."""
        return result(await self.ask(subject, body, **options))

    async def ask(
        self,
        subject: str,
        body: dict[str, Any],
        *,
        op: str | None = None,
        data: bytes | None = None,
        attempt: float | None = None,
        first: float | None = None,
        patience: float | None = None,
    ) -> bytes:
        """The raw answer to `body` (with `data`: a raw request), the same operation until `patience` is over.

        An attempt waits for `attempt` seconds; with `first` the first one waits so long, the next twice that.

        Raises the answered error, or BrokerDown, NodeLost, DeadlineExceeded when no answer came in time.
        """
        loop = asyncio.get_running_loop()
        wait = self.patience if patience is None else patience
        until = loop.time() + wait
        payload = self._payload(body, op or new_operation(), wait, data)
        headers = tracing.headers(always=self._trace)
        longest = attempt or ATTEMPT
        length = first or longest
        for pause in pauses():
            answer = await self._attempt(
                subject, payload, max(_LEAST, min(length, until - loop.time())), headers
            )
            length = min(2 * length, longest)
            if isinstance(answer, bytes):
                return answer
            await self._unless_lost(subject, answer)
            asked = max(pause, answer.retry_after or 0.0)
            if loop.time() + asked + _LEAST >= until:
                raise answer
            await asyncio.sleep(asked)
        raise AssertionError("pauses never end")

    async def record(self, sandbox: str, *, patience: float = ATTEMPT) -> Record | None:
        """The registry's word on a sandbox, for when its node does not answer."""
        page = await self.call(self.subject("sandbox", "list"), {"sandbox": sandbox}, patience=patience)
        return Record.model_validate(page["sandboxes"][0]) if page["sandboxes"] else None

    async def _unless_lost(self, subject: str, unanswered: DsecError) -> None:
        """Raises NodeLost when the sandbox was declared failed, NoCapacity when no node has devices: nobody
        is going to answer.
        """
        address = subjects.parse(subject)
        if (address.noun, address.verb) == ("fn", "gpu") and isinstance(unanswered, NodeLost):
            raise NoCapacity("no node with a declared device listens", field="gpu") from unanswered
        if not address.sandbox or isinstance(unanswered, (BrokerDown, Overloaded)):
            return
        try:
            record = await self.record(address.sandbox, patience=_ASIDE)
        except DsecError:  # the node may answer yet
            return
        if record is not None and record.state is State.FAILED and record.failure is Failure.INFRA:
            raise NodeLost(f"{record.sandbox} failed: {record.reason}") from unanswered

    async def _attempt(
        self, subject: str, payload: bytes, timeout: float, headers: dict[str, str] | None
    ) -> bytes | DsecError:
        try:
            answer = (await self.bus.request(subject, payload, timeout=timeout, headers=headers)).data
        except _UNANSWERED as unanswered:
            return unanswered
        error = error_in(answer)
        if error is None:
            return answer
        if isinstance(error, Overloaded):
            return error
        raise error

    def _payload(self, body: dict[str, Any], op: str, wait: float, data: bytes | None) -> bytes:
        envelope = {"v": VERSION, "op": op, "deadline": int((time.time() + wait) * 1000), **body}
        try:
            payload = orjson.dumps(envelope)
        except TypeError as error:
            raise SpecError(f"the request cannot be sent: {error}", field="body") from None
        if data is not None:
            payload = pack_data(payload, data)
        if len(payload) > self.bus.max_payload:
            raise TooLarge(
                f"the request has {len(payload)} bytes, the broker takes {self.bus.max_payload}: split it",
                field="body",
            )
        return payload
