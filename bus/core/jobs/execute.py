"""Carrying one batch out: place, order, ask again until each sandbox runs or has failed.

The plan is stored before the orders that it stands for, so a core that takes over asks the same nodes, and
they answer from what they did already. Rounds go on as long as it takes; every fault of the broker or a node
is met by the next round. Nodes get few messages: one for all numbers they have, `AT_ONCE` nodes at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import orjson

from dsec.bus import ids, operation, subjects
from dsec.bus.core.jobs import scheduling
from dsec.bus.core.jobs.charging import Charging
from dsec.bus.core.jobs.messages import (
    Batch,
    BatchOrder,
    NodeBatch,
    NodeBatchAnswer,
    Overrides,
    Phase,
    Spread,
)
from dsec.bus.core.jobs.plan import Plan, Status
from dsec.bus.core.jobs.runs import runs_of
from dsec.bus.core.jobs.store import Kept, Store
from dsec.bus.core.jobs.template import ask_of, asks_of
from dsec.bus.errors import (
    Cancelled,
    Conflict,
    DeadlineExceeded,
    DsecError,
    InfraError,
    NoCapacity,
    NodeLost,
)
from dsec.bus.handlers import result
from dsec.bus.transport import Bus

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
SLICE: Final = 1000
SLICE_BYTES: Final = 512 * 1024
"""Numbers, and bytes of overrides, that one order carries."""
WAIT: Final = 1.0
"""Seconds after which a node that is still at work says how far it is…"""
GRACE: Final = 5.0
"""…and those after which it has not answered at all."""
START_WITHIN: Final = 3600.0
"""Seconds in which a node may begin what it has accepted."""
PAUSE: Final = 0.3
GIVE_UP: Final = 75.0
"""Seconds for which a node may be away, as long as its sandboxes are not declared failed either."""
DRY: Final = 6
"""Rounds in which nothing more finds room before the rest of the batch fails."""
TELL_EVERY: Final = 0.25
"""Seconds between two words on progress."""


class Execution:
    """One core's work on one batch; `run` returns when it is done, or another core has it."""

    def __init__(self, bus: Bus, store: Store, order: BatchOrder, charging: Charging | None = None) -> None:
        self._bus = bus
        self._store = store
        self._order = order
        self._charging = charging
        self._asks = asks_of(order.spec, order.overrides)
        self._owner = ids.tail()
        self._excluded: set[str] = set()
        self._unsent: set[str] = set()
        self._silent: dict[str, float] = {}
        self._dry = 0
        self._unplaced = order.count + 1
        self._told = 0.0
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._kept: Kept
        self._plan: Plan

    async def run(self) -> Batch | None:
        """Until each number runs or has failed; None when another core carries it out meanwhile.

        Raises InfraError only when the state cannot be kept."""
        await self._open()
        try:
            while self._kept.batch.phase is not Phase.DONE:
                before = self._kept.batch.phase
                try:
                    await self._round()
                except InfraError as error:
                    log.warning("batch %s: %s", self._order.op, error)
                    await asyncio.sleep(PAUSE)
                await self._save()
                await self._tell(force=self._kept.batch.phase is not before)
        except Conflict:
            log.info("batch %s is carried out by another core", self._order.op)
            return None
        return self._kept.batch

    async def _open(self) -> None:
        order = self._order
        kept = await self._store.get(order.project, order.job, order.op)
        kept = kept or Kept(new_batch(order))
        self._kept = Kept(kept.batch.model_copy(update={"owner": self._owner}), kept.revision)
        self._plan = Plan(kept.batch)
        if kept.batch.phase is not Phase.DONE:
            self._kept = await self._store.put(self._kept)

    async def _round(self) -> None:
        if self._kept.batch.cancelled:
            self._plan.fail(self._plan.numbers(Status.UNPLACED), Cancelled("the batch was cancelled"))
        else:
            await self._place()
            if self._charging is not None and await self._charging.charge(self._plan, begin_by()):
                self._dry = 0  # it is not for want of room
        await self._save()  # before any order goes out
        started = time.monotonic()
        await asyncio.gather(*(self._ask(node, numbers) for node, numbers in self._plan.unsettled().items()))
        if self._plan.unsettled():
            await asyncio.sleep(max(0.0, PAUSE - (time.monotonic() - started)))

    # --- placing

    async def _place(self) -> None:
        """Give every unplaced number a node, as far as there is room; what finds none for long fails."""
        unplaced = self._plan.numbers(Status.UNPLACED)
        self._dry = 0 if len(unplaced) < self._unplaced else self._dry + 1
        self._unplaced = len(unplaced)
        if self._dry >= DRY:
            self._plan.fail(unplaced, NoCapacity("no healthy node has room for more; try again later"))
            return
        groups: dict[tuple[str, float | None, int | None], list[int]] = defaultdict(list)
        usual = ask_of(self._order.spec)
        for number in unplaced:
            groups[self._asks.get(number, usual)].append(number)
        left = [await self._spread(ask, numbers) for ask, numbers in groups.items()]
        if any(left):
            self._excluded.clear()
            if not self._plan.unsettled():
                await asyncio.sleep(PAUSE)

    async def _spread(self, ask: tuple[str, float | None, int | None], numbers: list[int]) -> int:
        backend, cpu, memory = ask
        asked = Spread(
            backend=backend, cpu=cpu, memory=memory, count=len(numbers), excluded=tuple(self._excluded)
        )
        try:
            found = await scheduling.spread(self._bus, asked)
        except NoCapacity:
            found = {}
        at = 0
        for node, count in found.items():
            self._plan.assign(numbers[at : at + count], node)
            self._unsent.add(node)
            at += count
        return len(numbers) - at

    # --- ordering

    async def _ask(self, node: str, numbers: list[int]) -> None:
        async with self._gate:
            for part in slices(numbers, self._order.overrides):
                try:
                    answer = await self._order_from(node, part)
                except NodeLost as error:
                    await self._unheard(node, numbers, error)
                    return
                except InfraError as error:
                    log.info("batch %s at %s: %s", self._order.op, node, error)
                    if isinstance(error, DeadlineExceeded):
                        await self._silence(node, numbers)
                    return
                except DsecError as error:
                    self._plan.fail(part, error)
                    continue
                finally:
                    self._unsent.discard(node)
                self._silent.pop(node, None)
                self._plan.fold(part, answer, final=self._kept.batch.phase is not Phase.PLACING)
                if answer.vetoed:
                    self._excluded.add(node)
                await self._tell()

    async def _order_from(self, node: str, numbers: list[int]) -> NodeBatchAnswer:
        order = self._order
        body = NodeBatch(
            op=order.op,
            deadline=begin_by(),
            begin_by=(self._charging and self._charging.latest) or begin_by(),
            project=order.project,
            principal=order.principal,
            job=order.job,
            spec=order.spec,
            overrides={n: order.overrides[n] for n in numbers if n in order.overrides},
            runs=runs_of(numbers),
            wait=WAIT,
            cancel=self._kept.batch.cancelled,
        )
        data = body.model_dump_json().encode()
        answer = await self._bus.request(
            subjects.node_batch(node), data, timeout=WAIT + GRACE, headers=operation.onward()
        )
        return NodeBatchAnswer.model_validate(result(answer.data))

    async def _unheard(self, node: str, numbers: list[int], error: NodeLost) -> None:
        """Nobody listens there. What it was never sent goes elsewhere; the rest may live on it."""
        if node in self._unsent and self._kept.batch.phase is Phase.PLACING:
            self._excluded.add(node)
            self._plan.unassign(numbers)
        else:
            log.info("batch %s at %s: %s", self._order.op, node, error)
            await self._silence(node, numbers)

    async def _silence(self, node: str, numbers: Iterable[int]) -> None:
        """A node that does not answer may be back soon; one that was away for long is given up."""
        now = time.monotonic()
        since = self._silent.setdefault(node, now)
        if now - since < GIVE_UP or not await scheduling.is_dead(self._bus, node):
            return
        still = set(self._plan.unsettled().get(node, ())) & set(numbers)
        self._plan.fail(still, NodeLost(f"{node} died while it created sandboxes of the batch"))

    # --- telling

    async def _save(self) -> None:
        """Store the plan, and take in a cancel that came meanwhile. Raises Conflict: another core has it."""
        while True:
            wanted = self._plan.state(self._kept.batch)
            try:
                self._kept = await self._store.put(Kept(wanted, self._kept.revision))
                return
            except Conflict:
                now = await self._store.get(wanted.project, wanted.job, wanted.op)
                if now is None or now.batch.owner != self._owner:
                    raise
                batch = wanted.model_copy(update={"cancelled": now.batch.cancelled})
                self._kept = Kept(batch, now.revision)

    async def _tell(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._told < TELL_EVERY:
            return
        self._told = now
        state = self._plan.state(self._kept.batch)
        phase = self._kept.batch.phase  # only what is stored is told as reached
        data = state.model_copy(update={"phase": phase}).model_dump_json().encode()
        try:
            await self._bus.publish(subjects.job_progress(state.project, state.job), data)
        except DsecError as error:
            log.info("batch %s: progress not told: %s", state.op, error)


def begin_by() -> int:
    """Until when, unix ms, a node may begin what it is asked for now."""
    return int((time.time() + START_WITHIN) * 1000)


def new_batch(order: BatchOrder) -> Batch:
    """The state of a batch of which nothing is done yet."""
    return Batch(
        project=order.project, principal=order.principal, job=order.job, op=order.op, count=order.count
    )


def slices(numbers: list[int], overrides: Overrides) -> Iterator[list[int]]:
    """`numbers` in parts that fit one order each."""
    part: list[int] = []
    room = SLICE_BYTES
    for number in numbers:
        override = overrides.get(number)
        room -= 0 if override is None else len(orjson.dumps(override)) + 8
        if part and (room < 0 or len(part) == SLICE):
            yield part
            part, room = [], SLICE_BYTES
        part.append(number)
    if part:
        yield part
