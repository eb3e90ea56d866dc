"""The work queue of batches: the stream JOBS with one durable consumer that all cores share.

An order is some core's for `ACK_WAIT` seconds at a time; a core at work on it says so once a second, and one
that was killed does not, so another gets the order. Protocol: JetStream pull consumers (NATS API reference).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import orjson

from dsec.bus import ids, subjects
from dsec.bus.core.jobs.messages import BatchOrder
from dsec.bus.errors import DsecError, InfraError
from dsec.bus.nats.directget import answer_of, ask
from dsec.bus.transport import Bus, Received

ACK_WAIT: Final = 3.0
PULL: Final = 2.0
"""Seconds that one question for work stands; a broker that starts again has forgotten it."""


class Queue:
    """Made by `running`. Methods raise BrokerDown and DeadlineExceeded."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._inbox = f"{bus.inbox}.work-{ids.tail(8)}"
        self._asked: asyncio.Future[Received | None] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus) -> AsyncIterator[Queue]:
        queue = cls(bus)
        subscription = await bus.subscribe(queue._inbox, queue._received)
        try:
            yield queue
        finally:
            with contextlib.suppress(DsecError):
                await subscription.unsubscribe()

    async def put(self, order: BatchOrder) -> None:
        """The order is stored on return; putting it twice does no harm. Raises InfraError."""
        subject = subjects.job_order(order.project, order.op)
        headers = {"Nats-Msg-Id": f"{order.project}/{order.op}"}
        answer = answer_of(await ask(self._bus, subject, order.model_dump_json().encode(), headers))
        if "error" in answer:
            raise InfraError(f"the broker refused the order: {answer['error'].get('description')}")

    async def prepare(self) -> None:
        """Make the consumer unless it is there. Raises InfraError."""
        config = {
            "durable_name": subjects.JOBS_CONSUMER,
            "ack_policy": "explicit",
            "ack_wait": int(ACK_WAIT * 1e9),
            "deliver_policy": "all",
            "max_ack_pending": 1000,
            "max_waiting": 512,
        }
        body = orjson.dumps({"stream_name": "JOBS", "config": config})
        subject = subjects.api(f"CONSUMER.DURABLE.CREATE.JOBS.{subjects.JOBS_CONSUMER}")
        answer = answer_of(await ask(self._bus, subject, body))
        if "error" in answer:
            raise InfraError(f"the broker refused the queue of batches: {answer['error'].get('description')}")

    async def take(self) -> Received | None:
        """The next order, None when there was none for `PULL` seconds; to be kept alive, and acknowledged."""
        asked: asyncio.Future[Received | None] = asyncio.get_running_loop().create_future()
        self._asked = asked
        body = orjson.dumps({"batch": 1, "expires": int(PULL * 1e9)})
        subject = subjects.api(f"CONSUMER.MSG.NEXT.JOBS.{subjects.JOBS_CONSUMER}")
        await self._bus.publish(subject, body, self._inbox)
        try:
            async with asyncio.timeout(PULL + 0.5):
                return await asked
        except TimeoutError:
            return None

    async def working(self, order: Received) -> None:
        """Keep the order from going to another core."""
        await self._bus.publish(order.reply, b"+WPI")

    async def done(self, order: Received) -> None:
        """The order is forgotten once the broker has read this."""
        await self._bus.publish(order.reply, b"+ACK")

    def _received(self, message: Received) -> None:
        if self._asked is None or self._asked.done():
            return  # it is given to another core once `ACK_WAIT` is over
        self._asked.set_result(None if message.headers and "Status" in message.headers else message)
