"""One limited project's budget in the hands of one core: O(1) for a create, rounds with the ledger for many.

A create takes from what the core holds. When that is not enough it waits for a round: read the ledger, look
into the registry, write by compare-and-set what this core holds from now on. One round serves all that wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from dsec.bus.admission import NOTHING, Amount, Ledger, Purse, draw, hold, limit_of, room, wish
from dsec.bus.admission_ledgers import Ledgers
from dsec.bus.admission_usage import Usage
from dsec.bus.errors import DsecError, Overloaded, QuotaExceeded
from dsec.bus.projects import Quota

PATIENCE: Final = 0.5
"""Seconds that a create waits for what other cores hold and may give back."""
PAUSE: Final = 0.05
IDLE: Final = 1.0
"""Seconds without a create after which a spare, and drawn tokens, are given up."""
RETRY_AFTER: Final = 0.5


@dataclass(frozen=True, slots=True)
class Terms:
    """Unix-clock milliseconds: how long a lease counts, and how late after its deadline a sandbox may be
    registered. A create under a quota has at most `lease - grace`, less what of the lease has passed.
    """

    lease: int = 300_000
    grace: int = 60_000


@dataclass(slots=True)
class _Waiting:
    charge: str
    project: str
    cost: Amount
    taken: asyncio.Future[None]
    since: float = field(default_factory=time.monotonic)
    looks: int = 0

    @property
    def pending(self) -> bool:
        return not self.taken.done()


class Budget:
    """`subtree` tells the projects that the quota bounds. Methods raise BrokerDown, DeadlineExceeded too."""

    def __init__(
        self,
        name: str,
        core: str,
        ledgers: Ledgers,
        usage: Usage,
        terms: Terms,
        subtree: Callable[[], Awaitable[frozenset[str]]],
    ) -> None:
        self.name = name
        self.quota = Quota()
        self.purse = Purse(terms.grace)
        self.used = time.monotonic()
        """When a create last took from it."""
        self._core = core
        self._ledgers = ledgers
        self._usage = usage
        self._terms = terms
        self._subtree = subtree
        self._listed: frozenset[str] = frozenset()
        self._below: frozenset[str] | None = None
        self._largest = NOTHING
        self._waiting: deque[_Waiting] = deque()
        self._tokens, self._drawn, self._dry = 0, 0.0, 0.0
        self._thirst = 0
        self._served = 0.0
        self._turn = asyncio.Lock()

    @property
    def standing(self) -> bool:
        """Whether live sandboxes count, and not only creates a second."""
        return (self.quota.sandboxes, self.quota.cpu, self.quota.memory) != (None, None, None)

    @property
    def idle(self) -> bool:
        """Whether nothing is held and nobody waits."""
        return self.purse.held == NOTHING and not self._waiting and not self._thirst

    # --- what a create takes

    def take(self, charge: str, project: str, cost: Amount) -> bool:
        """Hand out `cost`, if this core holds it. Only for projects that all cores know to be counted."""
        self.used = time.monotonic()
        self._largest = cost
        return project in self._listed and self.purse.reserve(charge, cost, now=_now())

    async def wait(self, charge: str, project: str, cost: Amount) -> None:
        """Take `cost` as soon as this core may.

        Raises QuotaExceeded when the live sandboxes leave no room for it, Overloaded when those under way do.
        """
        waiting = _Waiting(charge, project, cost, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            while waiting.pending:
                async with self._turn:
                    if self._due(waiting):
                        await self._serve()
                await asyncio.wait([waiting.taken], timeout=PAUSE)
            waiting.taken.result()
        finally:
            waiting.taken.cancel()

    def _due(self, waiting: _Waiting) -> bool:
        """Whether it is time for a round: all that wait share one."""
        rested = time.monotonic() - self._served >= PAUSE
        return waiting.pending and (not waiting.looks or rested)

    async def token(self) -> None:
        """Take one of the creates per second. Raises Overloaded."""
        if self.quota.creates_per_second is None:
            return
        if time.monotonic() - self._drawn > IDLE:
            self._tokens = 0
        if self._parched():
            self._thirst += 1
            try:
                async with self._turn:
                    if self._parched():
                        await self._round()
            finally:
                self._thirst -= 1
        if not self._tokens:
            raise self._dried()
        self._tokens -= 1

    def _parched(self) -> bool:
        """Whether tokens are to be drawn: none is left, and the next one must have come."""
        return not self._tokens and time.monotonic() >= self._dry

    def _dried(self) -> Overloaded:
        rate = self.quota.creates_per_second or 0.0
        return Overloaded(
            f"{self.name} may create {rate:g} sandboxes a second; try again",
            field="creates_per_second",
            retry_after=max(PAUSE, self._dry - time.monotonic()),
        )

    # --- rounds

    async def keep(self) -> None:
        """Give back what is idle or was registered, and renew the lease."""
        if self.purse.held == NOTHING and self.purse.reserved == NOTHING:
            return
        async with self._turn:
            await self._round()

    async def _serve(self) -> None:
        """One round for all that wait, and its outcome for each of them."""
        present = list(self._waiting)
        try:
            used = await self._round()
        except DsecError as error:
            failed = error
            self._settle(present, lambda _: failed)
        else:
            self._settle(present, lambda waiting: self._verdict(waiting, used))
        self._served = time.monotonic()

    def _settle(self, present: list[_Waiting], verdict: Callable[[_Waiting], DsecError | None]) -> None:
        for waiting in present:
            if not waiting.pending:
                continue  # its caller has gone
            if self.take(waiting.charge, waiting.project, waiting.cost):
                waiting.taken.set_result(None)
            elif (error := verdict(waiting)) is not None:
                waiting.taken.set_exception(error)
        self._waiting = deque(waiting for waiting in self._waiting if waiting.pending)

    def _verdict(self, waiting: _Waiting, used: Amount) -> DsecError | None:
        """Final only for what live sandboxes leave no room for, seen twice: a destroy may just be written."""
        waiting.looks += 1
        over = (used + waiting.cost).over(limit_of(self.quota))
        if over is not None and waiting.looks > 1:
            bound = getattr(self.quota, over)
            return QuotaExceeded(
                f"the quota of {self.name} is {bound:g} {_UNITS[over]}, and its live sandboxes leave no room",
                field=over,
            )
        if over is None and time.monotonic() - waiting.since > PATIENCE:
            return Overloaded(
                f"creates under way use up the quota of {self.name}; try again", retry_after=RETRY_AFTER
            )
        return None

    async def _round(self) -> Amount:
        """One change of the ledger, tried until no other core was faster; what the project uses."""
        while True:
            ledger, revision = await self._ledgers.read(self.name)
            if self._core not in ledger.leases or _now() >= self.purse.until:
                self.purse.lapse()
            projects = ledger.projects | await self._counted()
            if self.standing:
                await self._usage.look(projects)
            used = self._usage.of(projects)
            if await self._write(replace(ledger, projects=projects), used, revision):
                self._listed = projects
                return used

    async def _counted(self) -> frozenset[str]:
        """The projects below, as of the first round, and those that create since."""
        if self._below is None:
            self._below = await self._subtree()
        return self._below | {self.name} | {waiting.project for waiting in self._waiting}

    async def _write(self, ledger: Ledger, used: Amount, revision: int) -> bool:
        now, purse = _now(), self.purse
        held = self._wish(room(ledger, self._core, used, self.quota, now=now))
        after, drawn, pause = self._draw(ledger)
        until = now + self._terms.lease
        change = held - purse.held
        if change == NOTHING and not drawn and not self._thirst and self._settled(ledger, now):
            return True
        purse.granted(change.least(NOTHING), purse.until)  # given up before others may see it
        after = hold(after, self._core, held, until, now=now)
        if not await self._ledgers.write(self.name, after, revision):
            return False
        purse.granted(change.most(NOTHING), until)
        if self._thirst:
            self._tokens += drawn
            self._drawn = time.monotonic()
            self._dry = self._drawn + pause
        return True

    def _settled(self, ledger: Ledger, now: int) -> bool:
        """Whether the ledger already says all that it should: a lease with time left, every project."""
        fresh = self.purse.held == NOTHING or self.purse.until - now > self._terms.lease * 3 // 4
        return fresh and ledger.projects == self._listed

    def _wish(self, most: Amount) -> Amount:
        waiting = NOTHING
        for one in self._waiting:
            if one.pending:
                waiting += one.cost
        busy = self._waiting or time.monotonic() - self.used < IDLE
        return wish(self.purse.reserved, waiting, self._largest if busy else NOTHING, most)

    def _draw(self, ledger: Ledger) -> tuple[Ledger, int, float]:
        rate = self.quota.creates_per_second
        if rate is None or not self._thirst:
            return ledger, 0, 0.0
        return draw(ledger, self._thirst, rate, now=time.time())


_UNITS: Final = {"sandboxes": "sandboxes", "cpu": "cores", "memory": "bytes"}


def _now() -> int:
    return int(time.time() * 1000)
