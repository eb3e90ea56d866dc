"""What the microkernel asks of a message bus: NATS in `wire`, one process in `local`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol


class Received(NamedTuple):
    """A message as it came; `reply` is empty when no answer is wanted."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] | None = None


Callback = Callable[[Received], None]
"""Called in the event loop for each message; work goes into a task, never into the callback."""


class Subscription(Protocol):
    async def unsubscribe(self) -> None:
        """No callback runs afterwards; repeatable."""
        ...

    async def drain(self) -> None:
        """`unsubscribe` after the callback has had what the bus had already sent here; repeatable."""
        ...


class Bus(Protocol):
    """One connection with one identity."""

    @property
    def inbox(self) -> str:
        """This identity's private inbox prefix."""
        ...

    @property
    def connected(self) -> bool:
        """False while the connection is being made again."""
        ...

    @property
    def max_payload(self) -> int:
        """Bytes that one message may carry."""
        ...

    async def publish(
        self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Hand over to the connection. Raises BrokerDown while there is none, TooLarge."""
        ...

    async def request(
        self, subject: str, data: bytes, *, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Received:
        """The first answer.

        Raises BrokerDown (also when the connection breaks while waiting), NodeLost (nobody listens),
        PolicyError (not allowed to ask there), DeadlineExceeded, TooLarge.
        """
        ...

    async def subscribe(self, subject: str, callback: Callback, queue: str = "") -> Subscription:
        """Messages of `subject`, wildcards allowed; of a `queue` group one member gets each.

        On return the bus has taken it. Raises BrokerDown, PolicyError (not allowed to listen there).
        """
        ...

    async def round_trip(self) -> None:
        """What was published before is ahead, on return, of what anybody publishes afterwards.

        Raises BrokerDown.
        """
        ...
