"""The bus within one process: the same contract as `wire`, without a broker.

    hub = Hub()
    node, tenant = hub.bus("n-a"), hub.bus("u-ann")

For unit tests and for embedding. Delivery is in order and happens in a later turn of the event loop, as over
a wire; there are no permissions and no storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import Mapping

from dsec.bus import subjects
from dsec.bus.errors import BrokerDown, DeadlineExceeded, NodeLost, SpecError, TooLarge
from dsec.bus.ids import tail
from dsec.bus.transport import Callback, Received

log = logging.getLogger(__name__)


def matches(pattern: str, subject: str) -> bool:
    """NATS' rule: `*` stands for one token, a last `>` for one or more."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
    elif len(wanted) != len(tokens):
        return False
    return all(want in {"*", token} for want, token in zip(wanted, tokens, strict=False))


class LocalSubscription:
    """transport.Subscription within a Hub."""

    def __init__(self, hub: Hub, subject: str, callback: Callback, queue: str) -> None:
        self._hub = hub
        self.subject = subject
        self.callback = callback
        self.queue = queue
        self.active = True

    async def unsubscribe(self) -> None:
        self.active = False
        with contextlib.suppress(ValueError):
            self._hub.subscriptions.remove(self)

    async def drain(self) -> None:
        with contextlib.suppress(ValueError):
            self._hub.subscriptions.remove(self)
        await asyncio.sleep(0)  # what was routed before is delivered in this turn
        self.active = False

    def deliver(self, message: Received) -> None:
        if not self.active:
            return
        try:
            self.callback(message)
        except Exception:
            log.exception("a subscriber of %s failed", message.subject)


class Hub:
    """What the buses of one process have in common."""

    def __init__(self, max_payload: int = 1024 * 1024) -> None:
        self.max_payload = max_payload
        self.subscriptions: list[LocalSubscription] = []

    def bus(self, owner: str) -> LocalBus:
        """A connection of `owner`, as `Credentials.owner` names it."""
        return LocalBus(self, owner)

    def route(self, message: Received) -> bool:
        """Deliver soon to every plain subscriber and to one of each queue group; False: nobody listens."""
        listeners = [found for found in self.subscriptions if matches(found.subject, message.subject)]
        groups: dict[str, list[LocalSubscription]] = {}
        for listener in listeners:
            groups.setdefault(listener.queue, []).append(listener)
        plain = groups.pop("", [])
        loop = asyncio.get_running_loop()
        for listener in (*plain, *(random.choice(group) for group in groups.values())):  # noqa: S311 - spreads load
            loop.call_soon(listener.deliver, message)
        return bool(listeners)


class LocalBus:
    """transport.Bus within a Hub; `disconnect` and `reconnect` stand for a broker that goes and comes."""

    def __init__(self, hub: Hub, owner: str) -> None:
        self._hub = hub
        self._inbox = subjects.inbox(owner)
        self._tokens = itertools.count()
        self._prefix = f"{self._inbox}.{tail(8)}."
        self._connected = True

    @property
    def inbox(self) -> str:
        return self._inbox

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def max_payload(self) -> int:
        return self._hub.max_payload

    def disconnect(self) -> None:
        """From now on publishing and asking raise BrokerDown."""
        self._connected = False

    def reconnect(self) -> None:
        self._connected = True

    async def publish(
        self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self._check(subject, data)
        self._hub.route(Received(subject, reply, data, headers))

    async def request(
        self, subject: str, data: bytes, *, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Received:
        self._check(subject, data)
        answer: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        reply = f"{self._prefix}{next(self._tokens)}"
        subscription = await self.subscribe(reply, lambda message: _first(answer, message))
        try:
            if not self._hub.route(Received(subject, reply, data, headers)):
                raise NodeLost(f"nobody answers {subject} now")
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(f"{subject}: no answer within {timeout:g} s") from None
        finally:
            await subscription.unsubscribe()

    async def subscribe(self, subject: str, callback: Callback, queue: str = "") -> LocalSubscription:
        self._check(subject, b"")
        subscription = LocalSubscription(self._hub, subject, callback, queue)
        self._hub.subscriptions.append(subscription)
        return subscription

    async def round_trip(self) -> None:
        if not self._connected:
            raise BrokerDown("not connected to the broker")

    def _check(self, subject: str, data: bytes) -> None:
        if not self._connected:
            raise BrokerDown(f"not connected to the broker; {subject} was not sent")
        if len(data) > self.max_payload:
            raise TooLarge(f"{subject}: {len(data)} bytes, one message takes {self.max_payload}")
        if not subject or any(character.isspace() for character in subject):
            raise SpecError(f"{subject!r} is not a subject", field="subject")


def _first(answer: asyncio.Future[Received], message: Received) -> None:
    if not answer.done():
        answer.set_result(message)
