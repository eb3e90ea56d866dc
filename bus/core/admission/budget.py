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
from typing import Final, Protocol

from dsec.bus.core.admission import (
    NOTHING,
    Amount,
    Lease,
    Ledger,
    Purse,
    cut,
    draw,
    hold,
    limit_of,
    room,
    silent,
    wish,
)
from dsec.bus.core.admission.ledgers import Ledgers
from dsec.bus.core.admission.usage import Usage
from dsec.bus.core.claims import Cover
from dsec.bus.core.shedding import aside
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
    """Milliseconds: how long a lease counts, how late after its deadline a sandbox may be registered, and how
    long a core hands out without renewing. An order must begin within `lease - grace`, less what has passed.
    """

    lease: int = 300_000
    grace: int = 60_000
    fresh: int = 3000


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


class Answers(Protocol):
    """What cores, this one and others, answer for: their claims' covers."""

    def since(self) -> int:
        """No claim that this core answers for is older than this sequence of the claims."""
        ...

    async def covers(self, project: str, since: int) -> list[tuple[str, Cover]]:
        """Sandboxes and covers of the project's claims."""
        ...


class Budget:
    """`subtree` tells the projects that the quota bounds. Methods raise BrokerDown, DeadlineExceeded too."""

    def __init__(
        self,
        name: str,
        core: str,
        ledgers: Ledgers,
        usage: Usage,
        terms: Terms,
        answers: Answers,
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
        self._answers = answers
        self._subtree = subtree
        self._listed: frozenset[str] = frozenset()
        self._below: frozenset[str] | None = None
        self._largest = NOTHING
        self._waiting: deque[_Waiting] = deque()
        self._tokens, self._drawn, self._dry = 0, 0.0, 0.0
        self._thirst = 0
        self._told = NOTHING
        self._served = self._cut = 0.0
        self._turn = asyncio.Lock()

    @property
    def standing(self) -> bool:
        """Whether live sandboxes count, and not only creates a second."""
        return (self.quota.sandboxes, self.quota.cpu, self.quota.memory) != (None, None, None)

    @property
    def idle(self) -> bool:
        """Whether nothing is held and nobody waits."""
        held = self._told.most(self.purse.held)  # what the ledger says may be old
        return held == NOTHING and not self._waiting and not self._thirst

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
            with aside():
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
                with aside():
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
        if self.idle:
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
            ledger = await self._without_silent(replace(ledger, projects=projects))
            if await self._write(ledger, used, revision):
                self._listed = projects
                return used

    async def _without_silent(self, ledger: Ledger) -> Ledger:
        """The ledger in which cores that have died hold what is still to come of them; once a second."""
        if time.monotonic() - self._cut < IDLE or not (gone := silent(ledger, self._core, now=_now())):
            return ledger
        self._cut = time.monotonic()
        since, coming = min(lease.since for lease in gone.values()), dict.fromkeys(gone, NOTHING)
        for project in ledger.projects:
            for sandbox, cover in await self._answers.covers(project, since):
                late = cover.until + self._terms.grace < _now()
                if cover.core in coming and not late and not self._usage.knows(sandbox):
                    coming[cover.core] += Amount(*cover.cost)
        for core, amount in coming.items():
            ledger = cut(ledger, core, amount, now=_now())
        return ledger

    async def _counted(self) -> frozenset[str]:
        """The projects below, as of the first round, and those that create since."""
        if self._below is None:
            self._below = await self._subtree()
        return self._below | {self.name} | {waiting.project for waiting in self._waiting}

    async def _write(self, ledger: Ledger, used: Amount, revision: int) -> bool:
        now, purse = _now(), self.purse
        held = self._wish(room(ledger, self._core, used, self.quota, now=now))
        after, drawn, pause = self._draw(ledger)
        lease = Lease(held, now + self._terms.lease, now + self._terms.fresh, self._answers.since())
        change = held - purse.held
        if change == NOTHING and not self._thirst and self._settled(ledger, held, now):
            return True
        purse.given_up(change.least(NOTHING))  # before others may see it
        after = hold(after, self._core, lease, now=now)
        if not await self._ledgers.write(self.name, after, revision):
            return False
        purse.granted(change.most(NOTHING), lease)
        self._told = held
        if self._thirst:
            self._tokens += drawn
            self._drawn = time.monotonic()
            self._dry = self._drawn + pause
        return True

    def _settled(self, ledger: Ledger, held: Amount, now: int) -> bool:
        """Whether the ledger already says all that it should: what is held, in time, and every project."""
        mine = ledger.leases.get(self._core)
        if (NOTHING if mine is None else mine.held) != held or ledger.projects != self._listed:
            return False
        self._told = held
        return held == NOTHING or self.purse.fresh - now > self._terms.fresh * 2 // 3

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
