"""What a batch takes of its project's quotas: each number is charged as one create, under its own claim."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from dsec.bus import ids
from dsec.bus.core.claims import Claim, Claims
from dsec.bus.core.jobs.messages import BatchOrder
from dsec.bus.core.jobs.plan import Plan, Status
from dsec.bus.core.jobs.template import overridden
from dsec.bus.errors import DsecError, InfraError
from dsec.bus.spec import Spec

AT_ONCE: Final = 64


class Quotas(Protocol):
    """`bus.quotas.Quotas`, as far as batches need it."""

    def free(self, project: str) -> bool: ...

    async def pace(self, project: str) -> None: ...

    async def charge(self, claim: Claim, spec: Spec, deadline: int) -> tuple[Claim, int]: ...


class Charging:
    """The charges of one batch. `latest`, unix ms: what is charged has to begin before, if anything is."""

    def __init__(self, order: BatchOrder, claims: Claims, quotas: Quotas) -> None:
        self._order = order
        self._claims = claims
        self._quotas = quotas
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._charged: dict[int, str] = {}
        self.latest: int | None = None

    async def charge(self, plan: Plan, begin_by: int) -> bool:
        """Charge every number that has a node and is not charged; whether some have to wait.

        What a quota refuses fails; what is only too much at once is unplaced again.
        """
        if self._quotas.free(self._order.project):
            return False
        fresh = [n for n in plan.numbers(Status.ORDERED) if self._charged.get(n) != self._sandbox(plan, n)]
        return any(await asyncio.gather(*(self._one(plan, number, begin_by) for number in fresh)))

    async def _one(self, plan: Plan, number: int, begin_by: int) -> bool:
        order, sandbox = self._order, self._sandbox(plan, number)
        async with self._gate:
            try:
                if number not in self._charged:
                    await self._quotas.pace(order.project)
                claim = await self._claim(number, sandbox)
                spec = Spec.model_validate(overridden(order.spec, order.overrides.get(number, {})))
                _, deadline = await self._quotas.charge(claim, spec, begin_by)
            except InfraError:
                plan.unassign([number])
                return True
            except DsecError as error:
                plan.fail([number], error)
                return False
        self._charged[number] = sandbox
        self.latest = min(deadline, deadline if self.latest is None else self.latest)
        return False

    async def _claim(self, number: int, sandbox: str) -> Claim:
        """The number's claim, for where it lies now."""
        order = self._order
        operation = ids.operation_of(order.op, number)
        claim = await self._claims.claim(order.project, operation, order.op, sandbox)
        return claim if claim.sandbox == sandbox else await self._claims.settle(claim, sandbox)

    def _sandbox(self, plan: Plan, number: int) -> str:
        return ids.sandbox_of(plan.node_of(number), self._order.project, self._order.op, number)
