"""The sandboxes of this node: one table, and the one place where their records change.

Each change of state goes to the journal first, then to the registry and the event stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dsec.bus import subjects
from dsec.bus.chronus.guest import Exit, Guest
from dsec.bus.driver import CountsOom, Driver, Handle
from dsec.bus.errors import (
    AgentCrippled,
    DsecError,
    Failure,
    InfraError,
    LimitError,
    NodeLost,
    NoSuchSandbox,
    PolicyError,
    SpecError,
)
from dsec.bus.messages import Event, Record, State
from dsec.bus.nats.appender import Appender
from dsec.bus.registrar import Registrar, tombstone
from dsec.bus.spec import Limits
from dsec.plugins.edge.connection import Connection
from dsec.plugins.edge.file_watch import Watch
from dsec.plugins.edge.journal import Journal, Row
from dsec.plugins.edge.running import Desk, Running
from dsec.plugins.edge.session import Shell
from dsec.plugins.edge.states import change
from dsec.plugins.edge.trajectory import Trajectory

_FAILED: dict[Failure, type[DsecError]] = {
    Failure.LIMIT: LimitError,
    Failure.POLICY: PolicyError,
    Failure.INFRA: InfraError,
}


@dataclass(slots=True)
class Sandbox:
    """A sandbox and what the node holds of it. `guest` is None once its inside is dead."""

    record: Record
    handle: Handle
    driver: Driver
    guest: Guest | None
    home: Path
    spools: Path
    trajectory: Trajectory
    env: dict[str, str]
    desk: Desk = field(init=False)
    running: dict[str, Running | Shell] = field(default_factory=dict)
    sessions: dict[str, Exit] = field(default_factory=dict)
    """How those ended that have."""
    starting: dict[str, asyncio.Future[bytes]] = field(default_factory=dict)
    logs: dict[str, int] = field(default_factory=dict)
    used: float = field(default_factory=time.monotonic)
    oom_kills: int = 0
    doomed: bool = False
    """A destroy has begun: should it fail, it is tried again."""
    lost: bool = False
    """It was declared failed while the node was away: its end is not told as a destroy."""
    ending: asyncio.Task[None] | None = None
    connections: dict[str, Connection] = field(default_factory=dict)
    """To ports inside, by the operations that opened them."""
    watches: dict[str, Watch] = field(default_factory=dict)
    """Of files, by the names that their callers gave."""
    turning: set[asyncio.Task[None]] = field(default_factory=set)
    """Stops and starts under way, and watches that begin: a destroy ends them first."""
    pausing: bool = False
    """It is about to be paused: what is asked of it now finds it asleep."""
    switching: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def id(self) -> str:
        return self.record.sandbox

    @property
    def busy(self) -> bool:
        """Whether a command runs; a session that waits for one is no use."""
        return any(not isinstance(running, Shell) for running in self.running.values())

    def inside(self) -> Guest:
        """The agent inside. Raises SpecError for one that does not run, or what the sandbox failed of."""
        state = self.record.state
        if self.guest is not None and state is State.RUNNING and not self.pausing:
            return self.guest
        self.alive()
        if self.guest is None:
            raise AgentCrippled("the sandbox's agent does not answer")
        raise SpecError("the sandbox is paused; resume it first", field="state")

    @property
    def wakes(self) -> bool:
        """Whether a request that found it paused may have it resumed."""
        state = self.record.state
        return state is State.RUNNING or (state is State.PAUSED and not self.record.held)

    def startable(self) -> None:
        """Raises what the sandbox failed of."""
        if self.record.state is State.FAILED:
            kind = _FAILED.get(self.record.failure or Failure.INFRA, InfraError)
            raise kind(f"the sandbox failed: {self.record.reason}")

    def alive(self) -> None:
        """Raises SpecError for a sandbox that is stopped, or what it failed of."""
        self.startable()
        if self.record.state is State.STOPPED:
            raise SpecError("the sandbox is stopped; start it first", field="state")
        if self.record.state is State.STARTING:
            raise SpecError("the sandbox is starting; wait until it runs", field="state")

    async def oom_killed(self) -> bool:
        """Whether a process was killed for memory since the last question."""
        if not isinstance(self.driver, CountsOom):
            return False
        before, self.oom_kills = self.oom_kills, await self.driver.oom_kills(self.id)
        return self.oom_kills > before

    async def give_up(self) -> None:
        """Its stops and starts under way end: it is going to be destroyed. Repeatable."""
        turning = list(self.turning)
        for task in turning:
            task.cancel()
        await asyncio.gather(*turning, return_exceptions=True)

    def halt(self) -> None:
        """Nothing inside lives on: its commands end, told as killed. Repeatable."""
        self.disconnect()
        for running in self.running.values():
            running.abandon()
        if self.guest is not None:
            self.guest.close()
        self.guest = None

    def disconnect(self) -> None:
        """Every connection to a port is broken off, every watch ends. Repeatable."""
        while self.watches:
            self.watches.popitem()[1].close()
        while self.connections:
            self.connections.popitem()[1].close(reset=True)

    def end(self) -> None:
        """As `halt`, and no command comes any more. Repeatable."""
        self.halt()
        self.trajectory.close()

    def forsake(self) -> None:
        """It was declared failed elsewhere: nothing of it is told any more. Repeatable."""
        self.disconnect()
        for running in self.running.values():
            running.forsake()
        if self.guest is not None:
            self.guest.close()
        self.guest = None
        self.trajectory.close()

    async def leave(self) -> None:
        """The node stops, and no task of it uses the sandbox any more: inside all goes on. Repeatable."""
        self.disconnect()
        if self.guest is not None:
            self.guest.close()
        for running in self.running.values():
            running.leave()
        self.trajectory.close()


class Sandboxes:
    """The table; ids of other projects look as if they did not exist."""

    def __init__(self, journal: Journal, appender: Appender, registrar: Registrar) -> None:
        self._journal = journal
        self._appender = appender
        self._registrar = registrar
        self._lost: dict[str, str] = {}
        self._table: dict[str, Sandbox] = {}
        self.waiting: dict[str, Row] = {}
        """Sandboxes of a former process of the node whose driver runs in its own and is away."""
        self._reserved: dict[str, Limits] = {}
        self._changes = 0
        self.changed = asyncio.Event()
        """Set when what is promised may have changed; whoever tells it on clears it."""

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(list(self._table.values()))

    def __len__(self) -> int:
        return len(self._table)

    async def leave(self) -> None:
        """The node stops; see Sandbox.leave."""
        for sandbox in self:
            await sandbox.leave()

    def find(self, sandbox: str) -> Sandbox | None:
        return self._table.get(sandbox)

    def get(self, sandbox: str, project: str, *, use: bool = True) -> Sandbox:
        """The project's sandbox, now in use unless told otherwise. Raises NoSuchSandbox, NodeLost."""
        self.check_lost(sandbox, project)
        row = self.waiting.get(sandbox)
        if row is not None and row.record is not None and row.record.project == project:
            raise NodeLost(f"{sandbox} runs, but its driver {row.driver} is away")
        found = self._table.get(sandbox)
        if found is None or found.record.project != project:
            raise NoSuchSandbox(f"no sandbox {sandbox} in this project", field="sandbox")
        if use:
            found.used = time.monotonic()
        return found

    def check_lost(self, sandbox: str, project: str) -> None:
        """Raises NodeLost when it was declared failed while this node was away."""
        if self._lost.get(sandbox) == project:
            raise NodeLost(f"{sandbox} was lost: its node was away and was declared failed")

    async def remember_lost(self) -> None:
        """What former processes of the node had to bury."""
        self._lost = await self._journal.lost()

    async def bury(self, record: Record, reason: str) -> None:
        """Nothing is left of a sandbox that was declared failed; those who ask hear so for a day."""
        self._lost[record.sandbox] = record.project
        await self._journal.bury(record)
        self.remove(record.sandbox)
        self._registrar.put(tombstone(record, reason))

    def reserve(self, sandbox: str, limits: Limits) -> None:
        """Promise resources to a sandbox that is being created."""
        self._reserved[sandbox] = limits
        self.changed.set()

    def unreserve(self, sandbox: str) -> None:
        self._reserved.pop(sandbox, None)
        self.changed.set()

    def promised(self) -> Iterable[Limits]:
        """The limits of everything live or coming."""
        live = [_held(one.record) for one in self._table.values() if one.record.state is not State.FAILED]
        waiting = [_held(row.record) for row in self.waiting.values() if row.record is not None]
        return [*live, *waiting, *self._reserved.values()]

    def add(self, sandbox: Sandbox) -> None:
        self._table[sandbox.id] = sandbox
        self.unreserve(sandbox.id)

    def remove(self, sandbox: str) -> None:
        self._table.pop(sandbox, None)
        self.changed.set()

    async def change(self, sandbox: Sandbox, state: State, *, held: bool = False) -> Record:
        """Bring `sandbox` into `state`. Raises SpecError when it cannot go there, DiskFull, InfraError."""
        change(sandbox.record.state, state)
        record = sandbox.record.model_copy(update={"state": state, "held": held})
        return await self.rewrite(sandbox, record, what=state.value)

    async def revive(self, sandbox: Sandbox, handle: Handle) -> None:
        """It runs again, as `handle`. Raises DiskFull, InfraError."""
        change(sandbox.record.state, State.RUNNING)
        record = sandbox.record.model_copy(update={"state": State.RUNNING})
        await self._journal.revive(record, handle)
        sandbox.record, sandbox.handle = record, handle
        self.publish(record, record.state.value)

    async def fail(self, sandbox: Sandbox, failure: Failure, reason: str) -> None:
        """It has failed, whether or not that can be journalled: a restarted node finds it dead again."""
        failed = {"state": State.FAILED, "failure": failure, "reason": reason}
        sandbox.record = record = sandbox.record.model_copy(update=failed)
        with contextlib.suppress(InfraError):
            await self._journal.update(record)
        self.publish(record, record.state.value)

    async def rewrite(self, sandbox: Sandbox, record: Record, *, what: str) -> Record:
        """Make `record` the sandbox's record, journalled and published. Raises DiskFull, InfraError."""
        former, sandbox.record = sandbox.record, record
        try:
            await self._journal.update(record)
        except DsecError:
            if sandbox.record is record:
                sandbox.record = former
            raise
        self.publish(record, what)
        return record

    def publish(self, record: Record, what: str) -> None:
        """Tell registry and events; a destroyed sandbox stays in the registry for a while."""
        self._changes = max(int(time.time() * 1000), self._changes + 1)
        record = record.model_copy(update={"changed": self._changes})
        self._registrar.put(record, fresh=what == "created")
        event = Event(time=int(time.time() * 1000), record=record)
        self._appender.put(
            subjects.event(what, record.project, record.sandbox), event.model_dump_json().encode()
        )


def _held(record: Record) -> Limits:
    """What it is promised now: a stopped one keeps its place only."""
    return Limits() if record.state is State.STOPPED else record.applied
