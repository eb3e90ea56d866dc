"""Ends the connections of who was revoked, or got another key, that were begun before.

The broker's servers are asked which connections a name has (CONNZ) and told to close each (KICK; NATS
documentation, "System events"); the account of the platform imports these two services for iam alone. It is
done once more after a connection that was just being let in must have become visible.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Final, Self

import orjson

from dsec.bus.errors import DsecError
from dsec.bus.ids import tail
from dsec.bus.nats.broker import ACCOUNT
from dsec.bus.nats.wire import AUTH_TIMEOUT
from dsec.bus.transport import Bus, Received

log = logging.getLogger(__name__)

CONNECTIONS: Final = "$SYS.REQ.SERVER.PING.CONNZ"
KICK: Final = "$SYS.REQ.SERVER.{}.KICK"
ANSWERS_WITHIN: Final = 0.5
"""Seconds in which every server of a cluster tells its connections."""
ROUNDS: Final = 3
WITHIN: Final = ROUNDS * (ANSWERS_WITHIN + AUTH_TIMEOUT)
"""Seconds in which a revoked principal's connections have ended."""


class Ending:
    """Ends connections in the background; made by `running`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus) -> AsyncIterator[Self]:
        """What is under way when the block ends is finished first."""
        self = cls(bus)
        try:
            yield self
        finally:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def end(self, principals: Sequence[str]) -> None:
        """Begin to end every connection of `principals` that was begun before now."""
        if not principals:
            return
        task = asyncio.create_task(self._end(principals))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, principals: Sequence[str]) -> None:
        since = time.monotonic()
        for again in range(ROUNDS):
            if again:
                await asyncio.sleep(AUTH_TIMEOUT)
            try:
                await asyncio.gather(*(self._kick(principal, since) for principal in principals))
            except DsecError as error:
                log.warning("connections of %s: %s", ", ".join(principals), error)

    async def _kick(self, principal: str, since: float) -> None:
        for server, connection in await self._connections(principal, since):
            log.info("connection %d of %s is closed", connection, principal)
            body, unread = orjson.dumps({"cid": connection}), f"{self._bus.inbox}.kicked"
            await self._bus.publish(KICK.format(server), body, unread)  # without a reply it is not obeyed

    async def _connections(self, principal: str, since: float) -> list[tuple[str, int]]:
        """Servers and connection ids of a principal; what is older than `since` by the server's own clock."""
        answers: list[Received] = []
        inbox = f"{self._bus.inbox}.conns-{tail(8)}"
        subscription = await self._bus.subscribe(inbox, answers.append)
        try:
            query = {"auth": True, "acc": ACCOUNT, "user": principal, "limit": 1024}
            passed = time.monotonic() - since
            await self._bus.publish(CONNECTIONS, orjson.dumps(query), inbox)
            await asyncio.sleep(ANSWERS_WITHIN)
        finally:
            await subscription.unsubscribe()
        return [found for answer in answers for found in _found(answer.data, principal, passed)]


def _found(answer: bytes, principal: str, passed: float) -> list[tuple[str, int]]:
    """Those begun at least `passed` seconds before the server answered."""
    body: dict[str, Any] = orjson.loads(answer) if answer else {}
    data = body.get("data") or {}
    return [
        (str(data["server_id"]), int(one["cid"]))
        for one in data.get("connections") or ()
        if one.get("authorized_user") == principal and _age(data["now"], one["start"]) >= passed
    ]


def _age(now: str, start: str) -> float:
    """Seconds between two moments of one server's clock (RFC 3339, with nanoseconds)."""
    return (datetime.fromisoformat(now) - datetime.fromisoformat(start)).total_seconds()
