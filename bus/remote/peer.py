"""The edge's knowledge of one driver in a process of its own, and how it asks it.

Three states: away, present (an instance answers), ready (the edge has let that instance recover its
sandboxes). One that is leaving is asked on, but for creates. A request under way fails as soon as its
instance is known to be gone, not at its timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any, Final

from dsec.bus import operation, subjects
from dsec.bus.errors import BrokerDown, DeadlineExceeded, NodeLost
from dsec.bus.handlers import result
from dsec.bus.messages import Message
from dsec.bus.remote.messages import DriverUp
from dsec.bus.transport import Bus, Received

log = logging.getLogger(__name__)

SILENCE: Final = 5.0
"""Seconds without `driver.up` after which a driver is taken for dead."""
PAUSE: Final = 0.1
FOREVER: Final = float("inf")
TIMEOUT: Final = 60.0


class Unasked(Exception):
    """The driver is away and has not even heard the question."""


class Peer:
    """See the module. `up` is what the driver told last."""

    def __init__(self, bus: Bus, node: str, up: DriverUp) -> None:
        self._bus = bus
        self._node = node
        self.name = up.name
        self.up = up
        self.instance = ""
        self._heard = 0.0
        self._present, self._ready = asyncio.Event(), asyncio.Event()
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def away(self) -> bool:
        """Whether work that can go elsewhere should."""
        return self.up.leaving or not self._ready.is_set()

    def heard(self, up: DriverUp) -> bool:
        """News from the driver; whether it is another instance, which must recover its sandboxes first."""
        fresh = up.instance != self.instance
        if fresh and self.instance:
            self.gone("another instance of it answers")
        self.up, self.instance, self._heard = up, up.instance, time.monotonic()
        self._present.set()
        return fresh

    def silent(self) -> bool:
        """Whether it should have been heard of."""
        return bool(self.instance) and time.monotonic() - self._heard > SILENCE

    def gone(self, why: str) -> None:
        """The instance is no more: what it was asked fails. Repeatable."""
        if self._present.is_set():
            log.warning("driver %s is away: %s", self.name, why)
        self.instance = ""
        self._present.clear()
        self._ready.clear()
        if not self._lost.done():
            self._lost.set_result(None)
        self._lost = asyncio.get_running_loop().create_future()

    def ready(self, instance: str) -> None:
        """`instance` has recovered the node's sandboxes."""
        if instance == self.instance:
            self._ready.set()

    async def settled(self, within: float) -> None:
        """Wait until it is ready, but no longer than `within` seconds."""
        with contextlib.suppress(NodeLost):
            await self._available(ready=True, within=within)

    async def ask(
        self,
        verb: str,
        body: Message,
        *,
        ready: bool = True,
        patience: float = FOREVER,
        timeout: float = TIMEOUT,
    ) -> Any:
        """What the driver answers. Waits up to `patience` seconds for a driver that is away, and asks again
        one that died over the question; with 0 it is asked once.

        Raises what the driver raised, NodeLost when it was away for too long, BrokerDown.
        """
        until = time.monotonic() + patience
        while True:
            try:
                await self._available(ready=ready, within=until - time.monotonic())
                answer = await self.once(verb, body, timeout)
                break
            except (Unasked, NodeLost, BrokerDown, DeadlineExceeded) as error:
                if time.monotonic() + PAUSE > until:
                    raise (self._is_away() if isinstance(error, Unasked) else error) from error
                await asyncio.sleep(PAUSE)
        return result(answer)

    def _is_away(self) -> NodeLost:
        return NodeLost(f"the driver {self.name} of {self._node} is away; it runs in a process of its own")

    async def _available(self, *, ready: bool, within: float) -> None:
        event = self._ready if ready else self._present
        if event.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if within == FOREVER else max(0.0, within)):
                await event.wait()
                return
        raise self._is_away()

    async def once(self, verb: str, body: Message, timeout: float) -> bytes:
        """The driver's answer as it came. Raises Unasked, NodeLost when it died over it, BrokerDown,
        DeadlineExceeded.
        """
        subject, lost = subjects.driver(verb, self._node, self.name), self._lost
        data = body.model_dump_json().encode()
        asking = asyncio.ensure_future(
            self._bus.request(subject, data, timeout=timeout, headers=operation.carried())
        )
        try:
            both: set[asyncio.Future[Any]] = {asking, lost}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise NodeLost(f"the driver {self.name} died over {verb}")
            return self._answered(asking, lost)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    def _answered(self, asking: asyncio.Future[Received], lost: asyncio.Future[None]) -> bytes:
        try:
            return asking.result().data
        except NodeLost as error:
            if self._lost is lost:
                self.gone("nobody answers")
            raise Unasked from error
