"""A node's side of jobs: does one thing to every sandbox of a job, all at once, and tells how it went."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Final, Protocol

from dsec.bus import subjects
from dsec.bus.core.jobs.messages import NodeJob, NodeJobAnswer, SandboxError
from dsec.bus.errors import DsecError, InfraError
from dsec.bus.handlers import decode, in_time, ok, serving_internal
from dsec.bus.messages import State
from dsec.bus.transport import Bus, Received

log = logging.getLogger(__name__)

NAMED: Final = 100


class Members(Protocol):
    """The sandboxes of this node. What is done is repeatable and raises as the sandbox's own verb does."""

    def of_job(self, project: str, job: str) -> Iterable[str]: ...

    def state(self, sandbox: str) -> State | None: ...

    def cancel(self, project: str, job: str) -> int:
        """Create no more of the job; how many are under way."""
        ...

    async def pause(self, sandbox: str) -> None: ...

    async def resume(self, sandbox: str) -> None: ...

    async def kill(self, sandbox: str) -> None: ...


class JobOps:
    """Answers node.op; made by `running`."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._doing: dict[tuple[str, str], asyncio.Task[None]] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus, node: str, members: Members) -> AsyncIterator[None]:
        """Serve while the block runs; what is under way ends with it, and is done when it is asked again."""
        ops = cls(members)
        try:
            async with serving_internal(bus, subjects.node_op(node), ops.answer):
                yield
        finally:
            doing = list(ops._doing.values())
            for task in doing:
                task.cancel()
            await asyncio.gather(*doing, return_exceptions=True)

    async def answer(self, message: Received) -> bytes:
        """States afterwards, what is still being done, and what failed. Raises SpecError."""
        order = decode(NodeJob, message.data)
        in_time(order)
        coming = self._members.cancel(order.project, order.job) if order.verb == "kill" else 0
        sandboxes = list(self._members.of_job(order.project, order.job))
        tasks: dict[str, asyncio.Task[None]] = {}
        if order.verb != "stat":
            tasks = {sandbox: self._task(sandbox, order.verb) for sandbox in sandboxes}
        if tasks:
            await asyncio.wait(tasks.values(), timeout=order.wait)
        states = Counter(state for one in sandboxes if (state := self._members.state(one)) is not None)
        busy = sum(not task.done() for task in tasks.values()) + coming
        return ok(NodeJobAnswer(states=dict(states), busy=busy, failed=_failed(tasks)[:NAMED]))

    def _task(self, sandbox: str, verb: str) -> asyncio.Task[None]:
        """What is done to the sandbox; one that is asked for again while it runs is the same."""
        key = (sandbox, verb)
        task = self._doing.get(key)
        if task is None:
            task = self._doing[key] = asyncio.create_task(self._do(sandbox, verb))
            task.add_done_callback(lambda _: self._doing.pop(key, None))
        return task

    async def _do(self, sandbox: str, verb: str) -> None:
        try:
            match verb:
                case "pause":
                    await self._members.pause(sandbox)
                case "resume":
                    await self._members.resume(sandbox)
                case "kill":
                    await self._members.kill(sandbox)
        except DsecError:
            raise
        except Exception as error:
            log.exception("%s of %s", verb, sandbox)
            raise InfraError("internal error of the node; its log has the traceback") from error


def _failed(tasks: dict[str, asyncio.Task[None]]) -> list[SandboxError]:
    failed = []
    for sandbox, task in tasks.items():
        if task.done() and not task.cancelled():
            error = task.exception()
            if isinstance(error, DsecError):
                failed.append(SandboxError(sandbox=sandbox, error=error.body()))
    return failed
