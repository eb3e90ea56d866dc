"""Commands of simulated sandboxes: an outcome of the configuration, answered and logged as a real one.

Every command is short: one INLINE frame is the answer and the record in EXEC, whatever time it took.
"""

from __future__ import annotations

import asyncio
from typing import Final

import orjson

from dsec.bus import subjects
from dsec.bus.errors import Failure, NoSuchExec, SpecError
from dsec.bus.frames import Frame, Kind, pack_parts
from dsec.bus.handlers import Call, ok
from dsec.bus.ids import exec_of
from dsec.bus.messages import Ended, ExecEnd, Record, StartExec, State
from dsec.bus.nats.appender import Appender
from dsec.plugins.sim import journal as lines
from dsec.plugins.sim.books import Held
from dsec.plugins.sim.config import ERRORS, Fate, Outcome, SimConfig
from dsec.plugins.sim.journal import Journal

KILLED: Final = {"ended": Ended.TIMEOUT, "code": None, "signal": None}


class Execs:
    """`exec.start` of one node; while it is not `opened` nothing ends."""

    def __init__(
        self,
        node: str,
        config: SimConfig,
        fate: Fate,
        journal: Journal,
        appender: Appender,
        opened: asyncio.Event,
    ) -> None:
        self._node = node
        self._config = config
        self._fate = fate
        self._journal = journal
        self._appender = appender
        self._open = opened
        self._running: dict[str, asyncio.Task[bytes]] = {}

    async def start(self, held: Held, request: StartExec) -> bytes:
        """A packed frame: INLINE with everything, or for a repeated start an empty STARTED.

        Raises SpecError (paused), what the sandbox failed of, and the configured faults.
        """
        exec_ = exec_of(request.op)
        running = self._running.get(exec_)
        if running is None:
            number = held.number(exec_)
            if number is not None:
                return again(exec_, number)
            _living(held)
            running = asyncio.create_task(self._run(held, exec_, request))
            self._running[exec_] = running
            running.add_done_callback(lambda _: self._running.pop(exec_, None))
        return await running

    async def credit(self, held: Held, call: Call) -> bytes:
        """All output was in the first frame: there is nothing to hold back."""
        if held.number(call.address.exec) is None:
            raise NoSuchExec(f"no exec {call.address.exec} in this sandbox", field="exec")
        return ok()

    async def _run(self, held: Held, exec_: str, request: StartExec) -> bytes:
        self._fate.strike("exec")
        number = held.begin(exec_)
        await self._journal.append(lines.started(self._node, held.id, exec_, number))
        outcome = self._config.outcome(request.argv)
        wall = outcome.wall_ms / 1000 + self._fate.delay("exec")
        timed_out = request.timeout is not None and wall > request.timeout
        if timed_out and request.timeout is not None:
            wall, outcome = request.timeout, outcome.model_copy(update=KILLED)
        await asyncio.sleep(wall)
        await self._open.wait()
        raw = _frame(outcome, wall, number)
        stored = self._appender.put(subjects.exec_stream(held.project, held.id, exec_), raw)
        if request.durable:
            await asyncio.shield(stored)
        return raw


def _living(held: Held) -> None:
    """Raises as a real node does for a sandbox that cannot run commands."""
    if held.state is State.FAILED:
        record = Record.model_validate_json(held.record)
        raise ERRORS[record.failure or Failure.INFRA](f"the sandbox failed: {record.reason}")
    if held.state is not State.RUNNING:
        raise SpecError(f"the sandbox is {held.state.value}; resume it first", field="state")


def _frame(outcome: Outcome, wall: float, number: int) -> bytes:
    out, err = outcome.stdout.encode(), outcome.stderr.encode()
    exited = outcome.ended is Ended.EXIT
    end = ExecEnd(
        ended=outcome.ended,
        code=outcome.code if exited else None,
        signal=outcome.signal,
        wall_ms=round(wall * 1000, 3),
        cpu_ms=0.0,
        max_rss=0,
        output_bytes=len(out) + len(err),
    )
    return Frame(Kind.INLINE, 0, 0, number, pack_parts(end.model_dump_json().encode(), out, err)).pack()


def again(exec_: str, number: int) -> bytes:
    """The answer to a repeated start: the log has everything."""
    meta = orjson.dumps({"exec": exec_, "again": True})
    return Frame(Kind.STARTED, 0, 0, number, pack_parts(meta, b"", b"")).pack()
