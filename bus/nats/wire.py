"""The bus over NATS: one connection, one identity, typed errors.

    async with Wire.connect("nats://127.0.0.1:4222", Credentials.load(path), name="core") as wire:
        answer = await wire.request("sched.place", body, timeout=2)

Nothing is buffered while the connection is down: `publish` and `request` raise BrokerDown at once and
requests under way fail with it, since what is delivered after its deadline is worse than what is lost.
The connection is made again, with jitter, for as long as the block lasts; subscriptions survive.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from nats.aio.client import Server
from nats.errors import Error
from nats.js import JetStreamContext

from dsec.bus.errors import (
    BrokerDown,
    DeadlineExceeded,
    DsecError,
    NodeLost,
    PolicyError,
    SpecError,
    TooLarge,
    Unauthenticated,
    Untrusted,
)
from dsec.bus.ids import tail
from dsec.bus.nats.connection import Connection, Mismatch
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.headers import header_bytes, parse_headers
from dsec.bus.nats.servers import Servers
from dsec.bus.transport import Callback, Received
from dsec.bus.workload import Workload

log = logging.getLogger(__name__)

AUTH_TIMEOUT = 1.5
"""Seconds that the broker waits for iam's word; a refusal that takes as long is iam's absence. Less than the
2 s after which nats-server pings a client, decided or not."""
ATTEMPT_TIMEOUT = 3
DRAIN_TIMEOUT = 1.0
"""Seconds that a broker has to confirm that it sends nothing more."""
NO_RESPONDERS = b"NATS/1.0 503"
_UNSAFE = re.compile(r"\s")
_VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')


@dataclass(slots=True)
class _Waiting:
    """A request under way."""

    subject: str
    answer: asyncio.Future[Received]

    def fail(self, error: DsecError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class WireSubscription:
    """transport.Subscription over NATS."""

    def __init__(self, connection: Connection, sid: int) -> None:
        self._connection = connection
        self._sid = sid

    async def unsubscribe(self) -> None:
        with contextlib.suppress(Error):  # closed or reconnecting: there is nothing to take back
            await self._connection.unsubscribe_direct(self._sid)

    async def drain(self) -> None:
        if self._connection.is_connected:
            with contextlib.suppress(Error, OSError, TimeoutError):
                async with asyncio.timeout(DRAIN_TIMEOUT):
                    await self._connection.stop_direct(self._sid)
        await self.unsubscribe()


class Wire:
    """transport.Bus over NATS; made by `connect` only."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._connection = Connection(self._violated)
        self.workload = Workload()
        self._inbox = credentials.inbox
        self._answers = f"{credentials.inbox}.{tail(8)}."
        self._tokens = itertools.count()
        self._waiting: dict[str, _Waiting] = {}
        self._denied: set[str] = set()
        self._connected_hooks: list[Callable[[], None]] = []
        self._disconnected_hooks: list[Callable[[], None]] = []
        self._last_error = "no answer"
        self._linger = 0.0
        self._trusting: ssl.SSLContext | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls,
        servers: str,
        credentials: Credentials,
        name: str = "",
        *,
        timeout: float = 10.0,
        linger: float = 0.0,
    ) -> AsyncIterator[Self]:
        """Connected while the block runs; `servers` is one URL or several, as `bus.nats.servers` reads them.

        `linger`: seconds between two writes at the least, for busy services: a write is what a message costs.

        Raises BrokerDown when no broker can be reached within `timeout` seconds or iam does not answer it,
        Unauthenticated when the credentials are refused, Untrusted when a server does not prove that it is
        one of them, SpecError when `servers` cannot be read.
        """
        wire = cls(credentials)
        wire._linger = linger
        known = Servers.parse(servers)
        wire._trusting = known.trusting()
        try:
            await wire._open(known, name or credentials.owner, timeout)
            yield wire
        finally:
            await wire._connection.close()
            wire._fail_waiting("the connection was closed")

    # --- transport.Bus

    @property
    def inbox(self) -> str:
        return self._inbox

    @property
    def connected(self) -> bool:
        return self._connection.is_connected

    @property
    def max_payload(self) -> int:
        return self._connection.max_payload

    @property
    def jetstream(self) -> JetStreamContext:
        """nats-py's JetStream context, for streams and key-value buckets; not for hot paths."""
        return self._jetstream

    async def publish(
        self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        connection = self._connection
        if not connection.is_connected:
            raise BrokerDown(f"not connected to the broker; {subject} was not sent")
        size = len(data) + (header_bytes(headers) if headers else 0)
        if size > connection.max_payload:
            raise TooLarge(f"{subject}: {size} bytes, one message takes {connection.max_payload}")
        if not subject or _UNSAFE.search(subject) or _UNSAFE.search(reply):
            raise SpecError(f"{subject!r} is not a subject", field="subject")
        try:
            if headers:
                await connection.publish(subject, data, reply, dict(headers))
            else:
                await connection.send(subject, reply, data)
        except (Error, OSError) as error:
            raise BrokerDown.during(f"{subject} was not sent", error) from error

    async def request(
        self, subject: str, data: bytes, *, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Received:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(subject, loop.create_future())
        reply = f"{self._answers}{next(self._tokens)}"
        self._waiting[reply] = waiting
        late = loop.call_later(timeout, _expire, waiting, timeout)
        try:
            await self.publish(subject, data, reply, headers)
            return await waiting.answer
        finally:
            late.cancel()
            del self._waiting[reply]

    async def subscribe(self, subject: str, callback: Callback, queue: str = "") -> WireSubscription:
        """As transport.Bus; on return the broker has taken it. Raises PolicyError, BrokerDown."""
        if not self.connected:
            raise BrokerDown(f"not connected to the broker; {subject} was not subscribed")

        def receive(at: str, reply: str, data: bytes, headers: bytes | None) -> None:
            callback(Received(at, reply, data, parse_headers(headers) if headers else None))

        key = subject.lower()
        self._denied.discard(key)
        try:
            sid = await self._connection.subscribe_direct(subject, queue, receive)
        except (Error, OSError) as error:
            raise BrokerDown.during(f"{subject} was not subscribed", error) from error
        subscription = WireSubscription(self._connection, sid)
        try:
            await self._connection.roundtrip()
            if key in self._denied:
                raise PolicyError(f"not allowed to subscribe to {subject}")
        except BaseException as error:
            await subscription.unsubscribe()  # or it would come back with the connection
            if isinstance(error, Error | OSError):
                raise BrokerDown.during(f"{subject} was not subscribed", error) from error
            raise
        return subscription

    async def round_trip(self) -> None:
        """As transport.Bus: a PING, which the broker has answered on return. Raises BrokerDown."""
        try:
            await self._connection.roundtrip()
        except (Error, OSError) as error:
            raise BrokerDown.during("the broker does not answer a PING", error) from error

    # --- hooks

    def on_connected(self, hook: Callable[[], None]) -> None:
        """Run `hook` after each *re*connection, when subscriptions are back; it must not block."""
        self._connected_hooks.append(hook)

    def on_disconnected(self, hook: Callable[[], None]) -> None:
        """Run `hook` as soon as the connection is known to be broken; it must not block."""
        self._disconnected_hooks.append(hook)

    # --- opening

    async def _open(self, servers: Servers, name: str, timeout: float) -> None:
        until = asyncio.get_running_loop().time() + timeout
        while not await self._attempt(servers, name, until):
            await self._connection.close()
            self._connection = Connection(self._violated)
            await asyncio.sleep(random.uniform(0.05, 0.2))  # noqa: S311 - jitter, no secret
        self._connection.linger = self._linger
        self._jetstream = self._connection.jetstream()
        try:
            await self._connection.subscribe_direct(self._answers + "*", "", self._answered)
            await self._connection.roundtrip()
        except (Error, OSError) as error:
            raise BrokerDown.during(f"the broker at {servers} went away", error) from error
        if self._denied:
            raise PolicyError(f"not allowed to subscribe to {self._answers}*")

    async def _attempt(self, servers: Servers, name: str, until: float) -> bool:
        """False when iam did not give its word in time. Raises BrokerDown, Unauthenticated, Untrusted."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout_at(until):
                await self._connection.connect(list(servers.urls), name=name, **self._options())
        except TimeoutError:
            raise BrokerDown(f"no broker at {servers}: {self._last_error}") from None
        except (Mismatch, ssl.SSLCertVerificationError) as error:
            raise Untrusted(f"a broker at {servers} is not trusted: {error}") from None
        except (Error, OSError, ValueError) as error:
            self._last_error = str(error)
            if "authorization violation" in str(error).lower() and loop.time() - started < 0.9 * AUTH_TIMEOUT:
                raise Unauthenticated(
                    f"the broker at {servers} refused {self._credentials.role} {self._credentials.owner}"
                ) from None
            if loop.time() >= until:
                raise BrokerDown(f"no broker at {servers}: {self._last_error}") from None
            return False
        self._connection.options["allow_reconnect"] = True
        if self._credentials.source is not None:
            self._connection.seed = self._seed
        return True

    def _options(self) -> dict[str, Any]:
        return {
            "nkeys_seed_str": self._credentials.seed,
            "inbox_prefix": self._inbox,
            "allow_reconnect": False,  # for the first attempt only: a refusal must be seen, not retried
            "max_reconnect_attempts": -1,
            "connect_timeout": ATTEMPT_TIMEOUT,
            "reconnect_time_wait": 0.1,
            "reconnect_to_server_handler": self._next_attempt,
            "pending_size": 0,  # nats-py must not buffer while disconnected
            "ping_interval": 5,
            "max_outstanding_pings": 2,
            "tls": self._trusting,
            "error_cb": self._trouble,
            "disconnected_cb": self._lost,
            "reconnected_cb": self._back,
        }

    async def _seed(self) -> str:
        """The key as the file of the credentials has it now."""
        self._credentials = await asyncio.to_thread(self._credentials.current)
        return self._credentials.seed

    def _next_attempt(self, servers: list[Server], _info: dict[str, Any]) -> tuple[Server, float]:
        """Which server, and how many seconds from now; iam comes first since the others need it."""
        server = random.choice(servers)  # noqa: S311 - spreads load, no secret
        base = 0.02 if self._credentials.role is Role.IAM else 0.1
        wait = min(2.0, base * 2 ** min(server.reconnects, 8))
        return server, random.uniform(wait / 2, wait)  # noqa: S311 - jitter, no secret

    # --- what the broker tells

    def _answered(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        waiting = self._waiting.get(subject)
        if waiting is None or waiting.answer.done():
            return
        if headers and not data and headers.startswith(NO_RESPONDERS):
            waiting.fail(NodeLost(f"nobody answers {waiting.subject} now"))
            return
        waiting.answer.set_result(Received(subject, reply, data, parse_headers(headers) if headers else None))

    def _violated(self, text: str) -> None:
        """The broker's word, in lower case as nats-py passes it on, names the subject only."""
        match = _VIOLATION.search(text)
        if match is None:
            log.warning("%s: %s", self._credentials.owner, text)
        elif match[1] == "subscription":
            self._denied.add(match[2])
        elif not self._deny(match[2]):
            log.warning("%s may not publish to %s", self._credentials.owner, match[2])

    def _deny(self, subject: str) -> bool:
        denied = [waiting for waiting in self._waiting.values() if waiting.subject.lower() == subject]
        for waiting in denied:
            waiting.fail(PolicyError(f"not allowed to publish to {waiting.subject}"))
        return bool(denied)

    async def _trouble(self, error: Exception) -> None:
        self._last_error = str(error) or type(error).__name__
        log.info("%s: %s", self._credentials.owner, self._last_error)

    async def _lost(self) -> None:
        self._connection.drop_unsent()
        self._fail_waiting("the connection to the broker broke; the answer may be lost")
        _run(self._disconnected_hooks)

    async def _back(self) -> None:
        _run(self._connected_hooks)

    def _fail_waiting(self, why: str) -> None:
        for waiting in self._waiting.values():
            waiting.fail(BrokerDown(f"{waiting.subject}: {why}"))


def _expire(waiting: _Waiting, timeout: float) -> None:
    waiting.fail(DeadlineExceeded(f"{waiting.subject}: no answer within {timeout:g} s"))


def _run(hooks: list[Callable[[], None]]) -> None:
    for hook in hooks:
        try:
            hook()
        except Exception:
            log.exception("a connection hook failed")
