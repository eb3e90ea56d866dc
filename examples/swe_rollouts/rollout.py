"""One rollout as a trainer sees it: a sandbox, an agent in it, a reward; and how many run at once.

A failure of class `infra` says nothing about the agent: the rollout is tried again, and if that does not
help either it has no reward at all (`None`), which is not the same as 0.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dsec.bus.errors import DsecError, Failure
from dsec.bus.spec import MIB
from dsec.sdk.client import Client
from dsec.sdk.sandbox import Sandbox

from .agents import WORTH, Agent
from .grading import Stopwatch, grade, take_over
from .installation import Layers
from .tasks import Task

ATTEMPTS = 3
CREATE_TIMEOUT = 180.0
GRADERS = 4 * (os.cpu_count() or 1)
"""Gradings at once: they only wait for the processor."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to roll out; `index` tells repetitions apart."""

    index: int
    task: Task
    agent_name: str
    agent: Agent


@dataclass(slots=True)
class Outcome:
    """What came of a plan. `reward` None: it has none. `latencies` in milliseconds, of the last attempt."""

    task: str
    agent: str
    reward: int | None = None
    failure: str | None = None
    reasons: tuple[str, ...] = ()
    attempts: int = 1
    retried: list[str] = field(default_factory=list)
    latencies: dict[str, float] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether the agent got what it is worth."""
        return self.reward == WORTH[self.agent]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Gate:
    """Lets nobody through until all who are expected have come or given up: then all are there at once."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._open = asyncio.Event()
        self._inside: set[int] = set()
        self._lost: set[int] = set()
        self.peak = 0
        """The most sandboxes that were alive at once."""

    async def arrive(self, who: int) -> None:
        self._inside.add(who)
        self.peak = max(self.peak, len(self._inside))
        self._check()
        await self._open.wait()

    def leave(self, who: int) -> None:
        self._inside.discard(who)

    def give_up(self, who: int) -> None:
        """`who` is done, in whatever way; nobody waits for it any more."""
        self._lost.add(who)
        self._check()

    def _check(self) -> None:
        if len(self._inside | self._lost) >= self._expected:
            self._open.set()


@dataclass(slots=True)
class Trainer:
    """Runs plans on one client; `tag` keeps the names of this run's packs apart from another's."""

    client: Client
    layers: Layers
    gate: Gate
    tag: str
    graders: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(GRADERS))

    async def rollout(self, plan: Plan) -> Outcome:
        """Never raises a DsecError: failures are part of the outcome."""
        outcome = Outcome(plan.task.name, plan.agent_name)
        try:
            for outcome.attempts in range(1, ATTEMPTS + 1):
                if await self._attempt(plan, outcome):
                    break
        finally:
            self.gate.give_up(plan.index)
        return outcome

    async def _attempt(self, plan: Plan, outcome: Outcome) -> bool:
        """Whether the outcome stands; otherwise it is worth another attempt."""
        watch = Stopwatch()
        try:
            verdict = await self._solve_and_grade(plan, outcome.attempts, watch)
        except DsecError as error:
            outcome.failure = error.failure.value
            outcome.retried.append(f"{error.code}: {error.message}")
            outcome.reward = None if error.failure is Failure.INFRA else 0
            return error.failure is not Failure.INFRA
        finally:
            outcome.latencies = watch.ms
        outcome.reward, outcome.reasons, outcome.failure = verdict.reward, verdict.reasons, None
        return True

    async def _solve_and_grade(self, plan: Plan, attempt: int, watch: Stopwatch) -> Any:
        with watch("create"):
            sandbox = await self._create(plan.task)
        try:
            await self.gate.arrive(plan.index)
            with watch("exec"):
                await sandbox.run(["/bin/true"], timeout=60, check=True)
            with watch("solve"):
                await plan.agent(sandbox, plan.task)
            pack = await take_over(sandbox, plan.task, f"solved-{self.tag}-{plan.index}-{attempt}", watch)
        except BaseException:
            await sandbox.destroy()
            raise
        finally:
            self.gate.leave(plan.index)
        async with self.graders:
            return await grade(self.client, plan.task, self.layers, pack, watch)

    async def _create(self, task: Task) -> Sandbox:
        return await self.client.create(
            backend="container",
            image=self.layers.solving(task),
            limits={"memory": 512 * MIB, "pids": 128},
            ttl=3600,
            labels={"task": task.name},
            timeout=CREATE_TIMEOUT,
        )


async def run_all(
    trainer: Trainer, plans: Sequence[Plan], concurrency: int, done: Callable[[Outcome], None]
) -> list[Outcome]:
    """Every plan's outcome, in the order of the plans; `done` is told each as it comes."""
    slots = asyncio.Semaphore(concurrency)

    async def one(plan: Plan) -> Outcome:
        async with slots:
            outcome = await trainer.rollout(plan)
        done(outcome)
        return outcome

    async with asyncio.TaskGroup() as group:
        running: list[Awaitable[Outcome]] = [group.create_task(one(plan)) for plan in plans]
    return [await task for task in running]
