"""A simulated node: the node's side of the bus, without machines.

It answers, journals, registers and audits as a real node does: a create is acknowledged when it is on disk,
registry and events follow, mutating calls are audited. What is simulated is the inside: a sandbox is an entry
in a table, a command is an outcome of the configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import orjson

from dsec.bus import subjects
from dsec.bus.audit import Auditor
from dsec.bus.errors import (
    DsecError,
    NoSuchSandbox,
    SpecError,
    Unsupported,
)
from dsec.bus.fencing import DEFAULT, Fencing, Patience
from dsec.bus.handlers import (
    Call,
    Handler,
    ok,
    serving,
    serving_internal,
    typed,
)
from dsec.bus.messages import GrantCredit, RenewSandbox, Request, StartExec, State
from dsec.bus.metrics import names
from dsec.bus.nats.appender import Appender
from dsec.bus.nats.directget import DirectGet
from dsec.bus.registrar import Registrar, Version
from dsec.bus.registry import TOMBSTONE
from dsec.bus.transport import Bus
from dsec.bus.workload import workload_of
from dsec.plugins.sim import journal as lines
from dsec.plugins.sim.books import Books, Held
from dsec.plugins.sim.config import Fate, SimConfig, Verb
from dsec.plugins.sim.creates import Creates
from dsec.plugins.sim.execs import Execs
from dsec.plugins.sim.jobs import SimJobs
from dsec.plugins.sim.journal import Journal, Past, packed
from dsec.plugins.sim.lives import Lives
from dsec.plugins.sim.pulse import Pulse

log = logging.getLogger(__name__)

REAP_EVERY: Final = 0.2
CONCURRENCY: Final = 8192
AUDITED: Final = frozenset({"destroy", "pause", "resume", "renew"})
NO_HEADERS: Final[dict[str, str]] = {}


class SimNode:
    """One node; made by `running`. `sandboxes` counts what it holds."""

    def __init__(
        self,
        bus: Bus,
        node: str,
        config: SimConfig,
        journal: Journal,
        appender: Appender,
        registrar: Registrar,
    ) -> None:
        self.node = node
        self.bus = bus
        self.config = config
        self.journal = journal
        self._past = journal.past.pop(node, Past())
        self.appender = appender
        self.registrar = registrar
        self.auditor = Auditor(appender, "edge")
        self.fate = Fate(config, node)
        self.lives = Lives(self, journal, self._past)
        self.books = Books(config, self._past)
        self._jobs = SimJobs(self)
        self._ending: dict[str, asyncio.Future[None]] = {}
        self.figures = workload_of(bus).figures
        self.creates, self.pulse = Creates(self), Pulse(self)
        execs = Execs(node, config, self.fate, journal, appender, self.lives.open)
        self._handlers: dict[tuple[str, str], Handler] = {
            ("sandbox", "stat"): typed(Request, self.stat),
            ("sandbox", "destroy"): typed(Request, self.destroy),
            ("sandbox", "pause"): typed(Request, self.pause),
            ("sandbox", "resume"): typed(Request, self.resume),
            ("sandbox", "renew"): typed(RenewSandbox, self.renew),
            ("exec", "start"): typed(StartExec, lambda call, request: execs.start(self._held(call), request)),
            ("exec", "credit"): typed(GrantCredit, lambda call, _: execs.credit(self._held(call), call)),
        }

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        bus: Bus,
        node: str,
        journal: Journal,
        config: SimConfig | None = None,
        *,
        patience: Patience = DEFAULT,
    ) -> AsyncIterator[SimNode]:
        """Serve as `node` while the block runs; `bus` is connected with that node's credential.

        Sandboxes outlive the block in the journal: the next node of that name has them again, unless the
        watcher has declared them failed meanwhile. Raises BrokerDown, DiskFull, InfraError.
        """
        async with (
            Appender.running(bus) as appender,
            DirectGet.running(bus) as reader,
            Registrar.running(appender, reader) as registrar,
            contextlib.AsyncExitStack() as stack,
        ):
            self = cls(bus, node, config or SimConfig(), journal, appender, registrar)
            fencing = Fencing(bus, self.lives, patience)
            await fencing.join()
            await self._recover()
            for subject in subjects.node_requests(node):
                block = serving(
                    bus, subject, self.handle, concurrency=CONCURRENCY, refused=self.auditor.refused
                )
                await stack.enter_async_context(block)
            await stack.enter_async_context(
                serving_internal(
                    bus, subjects.node_create(node), self.creates.create, concurrency=CONCURRENCY
                )
            )
            await stack.enter_async_context(self._jobs.serving(bus))
            stack.enter_context(self.figures.telling(self.pulse.samples))
            await self.pulse.appear()
            tasks = [asyncio.create_task(work) for work in (self.pulse.beat(), self._reap(), fencing.keep())]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def sandboxes(self) -> int:
        return len(self.books.table)

    async def _recover(self) -> None:
        """Tell what a former process left: the same records, in this life, but for what was lost."""
        past, self._past, lives = self._past, Past(), self.lives
        self.books.recover(past, fenced=lives.fenced, epoch=lives.epoch, now=time.time())
        await lives.lose_fenced()
        for held in self.books.table.values():
            self.doom(held)
            self.publish(held, "recovered")

    # --- one sandbox

    async def opened(self) -> None:
        """This life counts; a node that lost the broker does nothing until it knows."""
        if not self.lives.open.is_set():
            await self.lives.open.wait()

    def doom(self, held: Held, *, add: bool = False) -> None:
        """Roll when the sandbox dies by itself."""
        lifetime = self.fate.lifetime()
        held.dies = None if lifetime is None else time.time() + lifetime
        if add:
            self.books.add(held)
        elif lifetime is not None:
            self.books.again(held)

    async def handle(self, call: Call) -> bytes | None:
        """One request of a tenant, audited where it changes something or is denied."""
        at = call.address
        handler = self._handlers.get((at.noun, at.verb))
        if handler is None:
            raise Unsupported(f"{at.noun}.{at.verb} is not served by a simulated node", field="subject")
        audited = at.noun == "sandbox" and at.verb in AUDITED
        target = at.exec or at.sandbox
        await self.opened()
        try:
            answer = await handler(call)
        except DsecError as error:
            if audited or isinstance(error, NoSuchSandbox):
                self.auditor.note(at, call.subject, outcome=error.code, target=target, detail=error.message)
            raise
        if audited:
            self.auditor.note(at, call.subject, outcome="ok", target=target)
        return answer

    def _held(self, call: Call) -> Held:
        return self.books.get(call.address.sandbox, call.address.project, time.time())

    async def stat(self, call: Call, _: Request) -> bytes:
        """The sandbox's record, also of one that a batch has still to create."""
        project, coming = self._jobs.coming.get(call.address.sandbox, ("", b""))
        if project == call.address.project:
            return b'{"ok":%b}' % coming
        return _told(self._held(call))

    async def destroy(self, call: Call, _: Request) -> bytes:
        """Nothing is left of it; repeatable."""
        at = call.address
        if self.books.gone.get(at.sandbox) != at.project:
            held = self._held(call)
            await self.trial("destroy")
            await self.end(held, "")
        return ok()

    async def pause(self, call: Call, _: Request) -> bytes:
        """Repeatable. Raises SpecError for a failed sandbox."""
        return await self._switch(call, "pause", State.PAUSED)

    async def resume(self, call: Call, _: Request) -> bytes:
        """Repeatable. Raises SpecError for a failed sandbox."""
        return await self._switch(call, "resume", State.RUNNING)

    async def renew(self, call: Call, request: RenewSandbox) -> bytes:
        """A new time to live, counted from now."""
        held = self._held(call)
        await self.trial("renew")
        held.expires = time.time() + request.ttl
        await self.change(held, "renewed", expires=int(held.expires * 1000))
        self.books.again(held)
        return _told(held)

    async def _switch(self, call: Call, verb: Verb, state: State) -> bytes:
        held = self._held(call)
        await self.switch(held, verb, state)
        return _told(held)

    async def switch(self, held: Held, verb: Verb, state: State) -> None:
        """Repeatable. Raises SpecError for a failed sandbox."""
        if held.state is State.FAILED:
            raise SpecError(f"a sandbox that is failed cannot become {state.value}", field="state")
        if held.state is not state:
            await self.trial(verb)
            held.state = state
            await self.change(held, state.value, state=state.value)

    async def trial(self, verb: Verb) -> None:
        await asyncio.sleep(self.fate.delay(verb))
        await self.opened()
        self.fate.strike(verb)

    async def change(self, held: Held, what: str, **fields: Any) -> None:
        held.record = changed(held.record, **fields)
        await self.journal.append(lines.changed(self.node, held.record))
        self.publish(held, what)

    async def end(self, held: Held, reason: str) -> None:
        """Destroy; those who ask meanwhile wait for the same end."""
        running = self._ending.get(held.id)
        if running is not None:
            return await asyncio.shield(running)
        self._ending[held.id] = running = self.journal.append(lines.gone(self.node, held.id, held.project))
        try:
            await asyncio.shield(running)
        finally:
            del self._ending[held.id]
        self.books.remove(held)
        held.state = State.DESTROYED
        held.record = changed(held.record, state="destroyed", reason=reason)
        self.publish(held, "destroyed")
        return None

    def publish(self, held: Held, what: str) -> None:
        """Tell registry and events; a destroyed sandbox leaves a tombstone for a while."""
        at = {"project": held.project, "sandbox": held.id, "epoch": held.epoch}
        self.tell(at, what, held.record, gone=held.state is State.DESTROYED)

    def tell(self, at: dict[str, Any], what: str, record: bytes, *, gone: bool = False) -> None:
        """The same for one that is not held; `gone`: nothing will follow this record."""
        project, sandbox = at["project"], at["sandbox"]
        subject = subjects.kv(subjects.REGISTRY_BUCKET, f"{project}.{self.node}.{sandbox}")
        version = Version(subject, at["epoch"], record, TOMBSTONE if gone else NO_HEADERS, gone)
        self.registrar.write(version, fresh=what == "created")
        event = b'{"time":%d,"record":%b}' % (int(time.time() * 1000), record)
        self.appender.put(subjects.event(what, project, sandbox), event)

    # --- by itself

    async def _reap(self) -> None:
        while True:
            await self.lives.open.wait()
            now = time.time()
            for held in self.books.take_due(now):
                try:
                    await self._befall(held, now)
                except DsecError:
                    log.exception("%s", held.id)
                    self.books.again(held)
            await asyncio.sleep(REAP_EVERY)

    async def _befall(self, held: Held, now: float) -> None:
        reason = held.why_over(now)
        if reason is not None:
            await self.end(held, reason)
            return
        deaths = self.config.deaths
        assert deaths is not None
        held.state = State.FAILED
        project = self.figures.project(held.project)
        self.figures.count(names.SANDBOX_FAILURES, self.pulse.backend, project, deaths.failure.value)
        await self.change(held, "failed", state="failed", failure=deaths.failure.value, reason=deaths.reason)
        self.books.again(held)


def changed(record: bytes, **fields: Any) -> bytes:
    """The record with these fields, told as newer."""
    body = orjson.loads(record)
    return packed(body | fields | {"changed": max(int(time.time() * 1000), body.get("changed", 0) + 1)})


def _told(held: Held) -> bytes:
    return b'{"ok":%b}' % held.record
