"""The drivers of one node that run in processes of their own, as its edge hears of them.

Each instance that joins is told to `joined`, one after the other for each name; when that returns, the driver
is ready. What cannot be used is told once in the log: another machine's driver, or one whose name is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from dsec.bus import subjects
from dsec.bus.errors import BadId, DsecError, InfraError
from dsec.bus.handlers import decode, result
from dsec.bus.remote.messages import About, DeathBody, DriverUp, machine
from dsec.bus.remote.peer import Peer
from dsec.bus.remote.proxy import RemoteDriver, proxy
from dsec.bus.transport import Bus, Received

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.5
ASK_WITHIN: Final = 2.0
"""Seconds for a driver that the node knows of to answer when the node starts."""
JOIN_WITHIN: Final = 5.0
Joined = Callable[[str, RemoteDriver], Awaitable[None]]


@dataclass(slots=True)
class _Member:
    peer: Peer
    driver: RemoteDriver
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Remotes:
    """See the module; made by `running` only."""

    def __init__(self, bus: Bus, node: str, taken: Collection[str], joined: Joined) -> None:
        self._bus = bus
        self._node = node
        self._taken = taken
        self._joined = joined
        self._machine = machine()
        self._members: dict[str, _Member] = {}
        self._refused: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, bus: Bus, node: str, *, taken: Collection[str], known: Collection[str], joined: Joined
    ) -> AsyncIterator[Remotes]:
        """Listen while the block runs; `taken` names are the node's own drivers. Of the `known` names those
        that run have joined when this returns.
        """
        remotes = cls(bus, node, taken, joined)
        up, death = (subjects.driver_news(verb, node) for verb in subjects.DRIVER_NEWS)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(remotes._end)
            for subject, callback in ((up, remotes._heard), (death, remotes._died)):
                subscription = await bus.subscribe(subject, callback)
                stack.push_async_callback(subscription.unsubscribe)
            remotes._spawn(remotes._look(), "watch over drivers")
            await asyncio.gather(*(remotes._ask(name) for name in known))
            yield remotes

    async def _end(self) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, name: str) -> None:
        """Whether a driver that was here before is here now."""
        subject = subjects.driver("info", self._node, name)
        with contextlib.suppress(DsecError):
            body = About(sandbox="").model_dump_json().encode()
            answer = await self._bus.request(subject, body, timeout=ASK_WITHIN)
            self._welcome(name, DriverUp.model_validate(result(answer.data)))
            await self._members[name].peer.settled(JOIN_WITHIN)

    # --- news

    def _heard(self, message: Received) -> None:
        try:
            self._welcome(subjects.driver_named(message.subject), decode(DriverUp, message.data))
        except DsecError as error:
            log.warning("%s: %s", message.subject, error)

    def _welcome(self, name: str, up: DriverUp) -> None:
        if why := self._unusable(name, up):
            if name not in self._refused:
                log.error("driver %s is not used: %s", name, why)
            self._refused.add(name)
            return
        member = self._members.get(name)
        if member is None:
            peer = Peer(self._bus, self._node, up)
            member = self._members[name] = _Member(peer, proxy(peer))
            self._spawn(self._keep(name, member), f"driver {name}")
        if member.peer.heard(up):
            member.news.set()

    def _unusable(self, name: str, up: DriverUp) -> str:
        if name in self._taken:
            return "the node's own process has a driver of that name; start the node without it"
        if up.name != name:
            return f"it calls itself {up.name}"
        if up.machine != self._machine:
            return (
                "it does not see the mounts of the node: run it on the same machine, in its mount namespace"
            )
        return ""

    def _died(self, message: Received) -> None:
        try:
            death = decode(DeathBody, message.data).death()
            member = self._members.get(subjects.driver_named(message.subject))
        except (DsecError, BadId) as error:
            log.warning("%s: %s", message.subject, error)
            return
        if member is not None:
            member.driver.died(death)

    # --- joining and leaving

    async def _keep(self, name: str, member: _Member) -> None:
        """Bring in each instance as it comes."""
        peer = member.peer
        while True:
            await member.news.wait()
            member.news.clear()
            instance = peer.instance
            if type(fresh := proxy(peer)) is not type(member.driver):  # it can do other things than before
                member.driver = fresh
            try:
                await self._joined(name, member.driver)
            except InfraError as error:
                log.warning("driver %s could not join: %s", name, error)
                self._again(member, instance)
            else:
                peer.ready(instance)
                log.info("driver %s joined", name)

    def _again(self, member: _Member, instance: str) -> None:
        """Should the same instance still be there, it is tried again a little later."""
        if member.peer.instance == instance:
            asyncio.get_running_loop().call_later(LOOK_EVERY, member.news.set)

    async def _look(self) -> None:
        """Notice those that are silent."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for member in self._members.values():
                if self._bus.connected and member.peer.silent():
                    member.peer.gone("it is silent")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task for drivers failed", exc_info=error)
