"""`RemoteDriver`: a `Driver` whose work is done by another process of the same machine.

Above it nobody sees a difference, but for `away`. It implements exactly the optional abilities that the
driver told of.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from dsec.bus.driver import Channel, Death, Handle, Info, Order, Rootfs
from dsec.bus.errors import InfraError, NoCapacity, NodeLost
from dsec.bus.handlers import result
from dsec.bus.remote.handover import fetch
from dsec.bus.remote.messages import About, ConnectTo, CreateOrder, DeathBody, HandleBody, Passed
from dsec.bus.remote.peer import Peer, Unasked

CREATE_WITHIN: Final = 150.0
"""Seconds; an edge has to answer its caller within as much."""
BRIEFLY: Final = 3.0
"""Seconds that a caller waits for a driver which is being started again."""


class RemoteDriver:
    """See the module and `Driver`. Deaths come in through `died`."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._watchers: set[asyncio.Queue[Death]] = set()
        self._unasked: set[str] = set()
        """Sandboxes whose create it did not hear: there is nothing to destroy."""

    @property
    def away(self) -> bool:
        """See MayBeAway."""
        return self._peer.away

    def info(self) -> Info:
        return self._peer.up.info()

    async def check(self) -> None:
        """The driver's own process has checked the machine. Raises NodeLost while it is away."""
        if self.away:
            raise NodeLost(f"the driver {self._peer.name} is away")

    async def create(self, order: Order, rootfs: Rootfs) -> Handle:
        """As Driver.create; raises NoCapacity when the driver is away or dies over it."""
        try:
            if self.away:
                raise Unasked
            answer = await self._peer.once("create", CreateOrder.of(order, rootfs), CREATE_WITHIN)
        except Unasked as error:
            self._unasked.add(order.sandbox)
            raise NoCapacity(f"the driver {self._peer.name} is away") from error
        except NodeLost as error:
            raise NoCapacity(error.message) from error
        return HandleBody.model_validate(result(answer)).handle()

    async def channel(self, sandbox: str) -> Channel:
        """As Driver.channel; waits for a driver that is away."""
        while True:
            answer = await self._peer.ask("channel", About(sandbox=sandbox))
            passed = Passed.model_validate(answer)
            try:
                connected = await fetch(Path(passed.path), passed.ticket)
            except NodeLost:  # it died in between
                continue
            return Channel(connected, passed.descriptors, Path(passed.cgroup) if passed.cgroup else None)

    async def destroy(self, sandbox: str) -> None:
        """As Driver.destroy; waits for a driver that is away, unless it never heard of the sandbox."""
        if sandbox in self._unasked:
            self._unasked.discard(sandbox)
            return
        await self._peer.ask("destroy", About(sandbox=sandbox), ready=False)

    async def inspect(self, sandbox: str) -> Death | None:
        """As Driver.inspect; waits for a driver that is away."""
        answer = await self._peer.ask("inspect", About(sandbox=sandbox))
        return None if answer is None else DeathBody.model_validate(answer).death()

    async def recover(self, handle: Handle) -> None:
        """As Driver.recover; raises NodeLost when the driver is away. A death found by it goes to `watch`."""
        answer = await self._peer.ask("recover", HandleBody.of(handle), ready=False, patience=0)
        if answer is not None:
            self.died(DeathBody.model_validate(answer).death())

    async def close(self) -> None:
        """The driver is closed by its own process."""

    # --- deaths

    def died(self, death: Death) -> None:
        for queue in self._watchers:
            queue.put_nowait(death)

    def watch(self) -> AsyncIterator[Death]:
        """Deaths from now on; see Driver.watch."""
        queue: asyncio.Queue[Death] = asyncio.Queue()
        self._watchers.add(queue)
        return self._deaths(queue)

    async def _deaths(self, queue: asyncio.Queue[Death]) -> AsyncIterator[Death]:
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)


class _Pausing(RemoteDriver):
    async def pause(self, sandbox: str) -> None:
        """As CanPause.pause. Raises NodeLost when the driver stays away."""
        await self._peer.ask("pause", About(sandbox=sandbox), patience=BRIEFLY)

    async def resume(self, sandbox: str) -> None:
        """As CanPause.resume. Raises NodeLost when the driver stays away."""
        await self._peer.ask("resume", About(sandbox=sandbox), patience=BRIEFLY)


class _Reclaiming(RemoteDriver):
    async def reclaim(self, sandbox: str) -> None:
        """As CanReclaim.reclaim. Raises NodeLost when the driver stays away."""
        await self._peer.ask("reclaim", About(sandbox=sandbox), patience=BRIEFLY)


class _Counting(RemoteDriver):
    async def oom_kills(self, sandbox: str) -> int:
        """As CountsOom.oom_kills. Raises NodeLost when the driver stays away."""
        answer = await self._peer.ask("oom_kills", About(sandbox=sandbox), patience=BRIEFLY)
        try:
            return int(answer["kills"])
        except (TypeError, KeyError, ValueError) as error:
            raise InfraError.during("not a count", error) from error


class _Connecting(RemoteDriver):
    async def connect(self, sandbox: str, port: int) -> socket.socket:
        """As CanConnect.connect. Raises NodeLost when the driver stays away."""
        answer = await self._peer.ask("connect", ConnectTo(sandbox=sandbox, port=port), patience=BRIEFLY)
        passed = Passed.model_validate(answer)
        return await fetch(Path(passed.path), passed.ticket)


_ABILITIES: Final[dict[str, type[RemoteDriver]]] = {
    "pause": _Pausing,
    "reclaim": _Reclaiming,
    "oom_kills": _Counting,
    "connect": _Connecting,
}


@functools.cache
def _kind(known: frozenset[str]) -> type[RemoteDriver]:
    """The class with just these abilities."""
    parts = [part for name, part in _ABILITIES.items() if name in known]
    return type("RemoteDriver", (*parts, RemoteDriver), {})


def proxy(peer: Peer) -> RemoteDriver:
    """A driver that implements what the peer's capabilities say; those we do not know are left out."""
    return _kind(frozenset(_ABILITIES.keys() & set(peer.up.capabilities)))(peer)
