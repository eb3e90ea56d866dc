"""Quotas in core: what a create takes of its project's budgets, and how it comes back.

    await quotas.pace(project)                                          # creates per second
    if not quotas.free(project):
        claim, deadline = await quotas.charge(claim, spec, deadline)    # sandboxes, cpu, memory

A project without a quota anywhere above costs one look into a dictionary; iam is asked for bounds once a
second in the background. A charge is held until the registry has the sandbox, a node or core has audited
that the create failed, or its deadline has long passed (docs/adr/0010-projects-and-quotas.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import orjson

from dsec.bus import subjects
from dsec.bus.core.admission import Amount, amount_of
from dsec.bus.core.admission.bounds import Boundaries
from dsec.bus.core.admission.budget import Budget, Terms
from dsec.bus.core.admission.ledgers import Ledgers, amount_data
from dsec.bus.core.admission.usage import Usage
from dsec.bus.core.claims import Claim, Claims, Cover
from dsec.bus.errors import DsecError, Overloaded, SpecError
from dsec.bus.handlers import Call, Handler
from dsec.bus.ids import tail
from dsec.bus.nats.directget import DirectGet
from dsec.bus.projects import Quota
from dsec.bus.spec import Limits, Spec
from dsec.bus.transport import Bus, Received

log = logging.getLogger(__name__)

TICK: Final = 0.5
FORGET: Final = 60.0
"""Seconds after which a budget that nobody uses is forgotten."""
OVERDUE: Final = 5.0
"""Seconds after which the claim of a sandbox that is not registered is read: it may have been placed anew."""
READS: Final = 50
"""Claims read in one tick."""
DEFAULT_TERMS: Final = Terms()


@dataclass(eq=False, slots=True)
class _Charge:
    """What one create has taken, and until when (unix ms) its sandbox may begin to be.

    `written`: others may know from the claim that this core answers for it, so it does.
    """

    key: str
    claim: Claim
    cost: Amount
    deadline: int
    budgets: list[Budget] = field(default_factory=list)
    written: bool = False
    since: float = field(default_factory=time.monotonic)


class Quotas:
    """Made by `running`. Methods raise BrokerDown and DeadlineExceeded besides what they name."""

    def __init__(self, bus: Bus, reader: DirectGet, claims: Claims, terms: Terms) -> None:
        self._bus = bus
        self._claims = claims
        self._terms = terms
        self._core = f"c-{tail()}"
        self._numbers = itertools.count()
        self._ledgers = Ledgers(bus, reader)
        self._usage = Usage(bus, reader, self._registered)
        self._boundaries = Boundaries(bus, self._spawn)
        self._budgets: dict[str, Budget] = {}
        self._charges: dict[str, _Charge] = {}
        self._sandboxes: dict[str, _Charge] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._connected = time.monotonic()
        self._latest = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, bus: Bus, reader: DirectGet, claims: Claims, terms: Terms = DEFAULT_TERMS
    ) -> AsyncIterator[Self]:
        """Serves while the block runs; what this core holds comes back to others when its lease is over."""
        self = cls(bus, reader, claims, terms)
        subscription = await bus.subscribe(subjects.audit("*", "create", "*"), self._audited)
        self._spawn(self._tick())
        try:
            yield self
        finally:
            await subscription.unsubscribe()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what core asks

    def pacing(self, handler: Handler) -> Handler:
        """Middleware: creates over a project's rate are shed before any work."""

        async def handle(call: Call) -> bytes | None:
            if not self._boundaries.none(call.address.project):
                await self.pace(call.address.project)
            return await handler(call)

        return handle

    async def pace(self, project: str) -> None:
        """Take one of the project's creates per second, and of all above it. Raises Overloaded."""
        for budget in await self._bounding(project):
            await budget.token()

    def free(self, project: str) -> bool:
        """Whether nothing is charged: it is known that there is no quota here or above. O(1)."""
        return self._boundaries.none(project)

    async def charge(self, claim: Claim, spec: Spec, deadline: int) -> tuple[Claim, int]:
        """Take what the claim's sandbox will use. The claim, and the deadline (unix ms) for its order.

        What is registered, or what some core answers for, is not charged again. Raises QuotaExceeded,
        Overloaded, SpecError (a limit that is counted must be told).
        """
        budgets = [budget for budget in await self._bounding(claim.project) if budget.standing]
        if not budgets or await self._counted(claim):
            return claim, deadline
        if claim.cover is not None and claim.cover.until > _now():
            return await self._cover(claim, claim.cover), min(deadline, claim.cover.until)
        _told(spec.limits, budgets)
        charge = _Charge(str(next(self._numbers)), claim, amount_of(spec.limits), deadline)
        self._charges[charge.key] = charge
        try:
            for budget in budgets:
                await self._take(charge, budget)
            await self._answer_for(charge)
        except BaseException:
            if not charge.written:
                self._drop(charge)
            raise
        self._sandboxes[claim.sandbox] = charge
        return charge.claim, charge.deadline

    async def _take(self, charge: _Charge, budget: Budget) -> None:
        project = charge.claim.project
        charge.budgets.append(budget)
        if not budget.take(charge.key, project, charge.cost):
            await budget.wait(charge.key, project, charge.cost)
        charge.deadline = min(charge.deadline, budget.purse.latest)

    async def _counted(self, claim: Claim) -> bool:
        """Whether the registry has the sandbox of a create that was charged before."""
        if claim.cover is None:
            return False
        await self._usage.look([claim.project])
        return self._usage.knows(claim.sandbox)

    async def _answer_for(self, charge: _Charge) -> None:
        """Write down that this core answers for the sandbox, while others must believe it.

        Raises Overloaded, and nothing is written, when they may have cut what this core holds.
        """
        charge.written = True  # or not: a write whose answer is lost may have been done
        cover = Cover(self._core, charge.deadline, tuple(amount_data(charge.cost)))
        try:
            charge.claim = await self._cover(charge.claim, cover)
        except Overloaded:
            charge.written = False
            raise
        if any(_now() >= budget.purse.fresh for budget in charge.budgets):
            charge.written = await self._claims.covered(charge.claim, None) is None
            raise Overloaded("this core is late with its leases; try again", retry_after=TICK)

    async def _cover(self, claim: Claim, cover: Cover) -> Claim:
        """The claim with its cover written anew; so two cores do not both believe that they were first."""
        covered = await self._claims.covered(claim, cover)
        if covered is None:  # a repeated write finds itself
            covered = await self._claims.get(claim.project, claim.operation)
        if covered is None or (covered.sandbox, covered.cover) != (claim.sandbox, cover):
            raise Overloaded("the same key is being created elsewhere; try again", retry_after=TICK)
        self._latest = max(self._latest, covered.revision)
        return covered

    # --- what budgets ask

    def since(self) -> int:
        """No claim that this core answers for is older than this sequence of the claims."""
        return min((charge.claim.revision for charge in self._charges.values()), default=self._latest)

    async def covers(self, project: str, since: int) -> list[tuple[str, Cover]]:
        """Sandboxes and covers of the project's claims."""
        return await self._claims.covers(project, since)

    def _drop(self, charge: _Charge) -> None:
        """No sandbox comes of it: what was taken is free again. Repeatable."""
        for budget in charge.budgets:
            budget.purse.failed(charge.key)
        self._forget(charge)

    async def _bounding(self, project: str) -> list[Budget]:
        """The budgets of the project and of those above it, with the quotas that they have now."""
        return [self._budget(one.project, one.quota) for one in await self._boundaries.of(project)]

    def _budget(self, name: str, quota: Quota) -> Budget:
        budget = self._budgets.get(name)
        if budget is None:
            below = functools.partial(self._boundaries.subtree, name)
            budget = Budget(name, self._core, self._ledgers, self._usage, self._terms, self, below)
            self._budgets[name] = budget
        budget.quota = quota
        return budget

    # --- how it comes back

    def _registered(self, sandbox: str) -> None:
        """The registry has a record: from now on it counts there."""
        charge = self._sandboxes.get(sandbox)
        if charge is not None:
            for budget in charge.budgets:
                budget.purse.registered(charge.key)
            self._forget(charge)

    def _audited(self, message: Received) -> None:
        """A node, or core itself, tells how a create ended."""
        if not self._sandboxes or b'"outcome":"ok"' in message.data:
            return
        with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError):
            charge = self._sandboxes.get(orjson.loads(message.data)["target"])
            if charge is not None:
                self._spawn(self._failed(charge))

    async def _failed(self, charge: _Charge) -> None:
        """Free again, unless a repeated create relies on this charge: then its deadline decides."""
        if await self._claims.covered(charge.claim, None) is not None:
            self._drop(charge)

    def _forget(self, charge: _Charge) -> None:
        self._charges.pop(charge.key, None)
        if self._sandboxes.get(charge.claim.sandbox) is charge:
            del self._sandboxes[charge.claim.sandbox]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            if not self._bus.connected:
                self._connected = time.monotonic()
                continue
            await self._trying("charges", self._follow_up())
            for budget in list(self._budgets.values()):
                await self._trying(budget.name, budget.keep())
                if budget.idle and time.monotonic() - budget.used > FORGET:
                    del self._budgets[budget.name]

    async def _trying(self, what: str, work: Awaitable[None]) -> None:
        """The next tick tries again; one budget's trouble is not that of the others."""
        try:
            await work
        except DsecError as error:
            log.info("quotas: %s: %s", what, error)
        except Exception:
            log.exception("quotas: %s", what)

    async def _follow_up(self) -> None:
        """Charges whose sandbox does not come: placed anew by another core, or never to come any more."""
        now, reads = time.monotonic(), 0
        known = now - self._connected > self._terms.grace / 1000
        for charge in list(self._charges.values()):
            if known and _now() > charge.deadline + self._terms.grace:
                self._drop(charge)
            elif now - charge.since > OVERDUE and reads < READS:
                reads += 1
                charge.since = now
                await self._placed_anew(charge)

    async def _placed_anew(self, charge: _Charge) -> None:
        """After a veto some other core may have given the claim another sandbox. Its revision stays the one
        of our charge: whoever changed the claim since may rely on it.
        """
        found = await self._claims.get(charge.claim.project, charge.claim.operation)
        if found is not None and charge.key in self._charges:
            self._forget(charge)
            charge.claim = replace(charge.claim, sandbox=found.sandbox)
            self._charges[charge.key] = self._sandboxes[found.sandbox] = charge
        if self._usage.knows(charge.claim.sandbox):
            self._registered(charge.claim.sandbox)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("quotas: %s", error)


def _told(limits: Limits, budgets: list[Budget]) -> None:
    """Raises SpecError for a limit that a quota counts and the spec leaves to the node."""
    for quantity in ("cpu", "memory"):
        for budget in budgets:
            if getattr(budget.quota, quantity) is not None and getattr(limits, quantity) is None:
                raise SpecError(
                    f"limits.{quantity}: {budget.name} has a quota of it, so tell what this sandbox needs",
                    field=f"limits.{quantity}",
                )


def _now() -> int:
    return int(time.time() * 1000)
