"""Taking over what a former process of this node left: sandboxes go on, commands go on, orphans go.

The journal tells what was acknowledged. A live sandbox is recovered with its commands: the last stored record
of each tells how far its output got, the rest is in its spool and its pipes. A dead one fails. An intent, a
begun destroy and any root file system that no row names are swept away.
"""

from __future__ import annotations

import asyncio
import logging

from dsec.bus import subjects
from dsec.bus.chronus.guest import Exec, Guest
from dsec.bus.driver import CountsOom, Death
from dsec.bus.errors import DsecError, Failure, GoneError, InfraError, NodeLost
from dsec.bus.fencing import LOST
from dsec.bus.frames import Frame, unpack
from dsec.bus.handlers import ok
from dsec.bus.messages import Record, State
from dsec.bus.nats.directget import DirectGet
from dsec.plugins.edge.channels import Channels
from dsec.plugins.edge.dead import Dead
from dsec.plugins.edge.ending import Ending, gone_key
from dsec.plugins.edge.execs import Execs
from dsec.plugins.edge.freezing import answering
from dsec.plugins.edge.journal import Phase, Row
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.running import Running
from dsec.plugins.edge.sandboxes import Sandbox

log = logging.getLogger(__name__)

AT_ONCE = 16
PAUSE = 0.3
"""Seconds between attempts to read the log."""


class Recovery:
    """One start of a node; `run` returns when everything is taken over or swept."""

    def __init__(self, node: Node, ending: Ending, channels: Channels, reader: DirectGet) -> None:
        self._node = node
        self._channels = channels
        self._ending = ending
        self._reader = reader
        self._execs = Execs(node)
        self._orphans: dict[str, Row] = {}
        self._late = asyncio.Lock()

    async def run(self) -> None:
        """Raises InfraError only for the node as a whole; one sandbox's trouble is its own."""
        node = self._node
        rows = await node.journal.rows()
        live = {row.sandbox for row in rows if row.phase is Phase.LIVE}
        orphans = (await node.images.composed() | {row.sandbox for row in rows} | self._directories()) - live
        gate = asyncio.Semaphore(AT_ONCE)

        async def guarded(row: Row) -> None:
            async with gate:
                await self._take_over(row)

        await asyncio.gather(*(guarded(row) for row in rows if row.sandbox in live))
        by_id = {row.sandbox: row for row in rows}
        for sandbox in sorted(orphans):
            row = by_id.get(sandbox)
            if row is not None and row.driver not in {"", *node.drivers}:
                self._orphans[sandbox] = row
            else:
                await self._sweep(sandbox, row)

    async def late(self, driver: str) -> None:
        """Take over and sweep what waited for a driver in a process of its own, which has joined."""
        async with self._late:
            waiting = self._node.sandboxes.waiting
            for sandbox, row in [item for item in waiting.items() if item[1].driver == driver]:
                del waiting[sandbox]
                await self._take_over(row)
            for sandbox, row in [item for item in self._orphans.items() if item[1].driver == driver]:
                del self._orphans[sandbox]
                await self._sweep(sandbox, row)

    def _directories(self) -> set[str]:
        node = self._node
        parents = (node.home / "sandboxes", node.spools)
        return {entry.name for parent in parents if parent.exists() for entry in parent.iterdir()}

    async def _sweep(self, sandbox: str, row: Row | None) -> None:
        log.info("sweeping %s", sandbox)
        try:
            await self._ending.sweep(sandbox, row.driver or None if row else None)
        except DsecError:
            log.exception("sweeping %s; it is tried again at the next start", sandbox)
            return
        if row is None or row.record is None:
            await self._node.journal.forget(sandbox)
            return
        record = row.record.model_copy(update={"state": State.DESTROYED})
        await self._node.journal.forget(sandbox, gone_key(record.project, sandbox), ok())
        self._node.sandboxes.publish(record, "destroyed")

    async def _take_over(self, row: Row) -> None:
        assert row.record is not None
        assert row.handle is not None
        node = self._node
        if row.handle.driver not in node.drivers:
            log.warning("%s: the node has no backend %s now", row.sandbox, row.handle.driver)
            node.sandboxes.waiting[row.sandbox] = row
            return
        if row.record.epoch <= node.fenced:
            await self._bury(row.record, row.handle.driver)
            return
        record = row.record.model_copy(update={"epoch": node.journal.epoch})
        sandbox = node.hold(record, row.handle, None)
        node.sandboxes.add(sandbox)
        try:
            await node.images.recover(row.sandbox)
            if record.state in {State.STOPPED, State.STARTING}:
                record = record.model_copy(update={"state": State.STOPPED})
                await self._stopped(sandbox)
            elif record.state is not State.FAILED:
                await self._inside(sandbox)
            await node.sandboxes.rewrite(sandbox, record, what="recovered")
        except NodeLost as error:  # of a driver in a process of its own: it went again
            log.warning("%s: %s", row.sandbox, error)
            await sandbox.leave()
            node.sandboxes.remove(row.sandbox)
            node.sandboxes.waiting[row.sandbox] = row
        except DsecError as error:
            await self._failed(sandbox, error)
        except (OSError, ValueError) as error:  # what a former process left of it cannot be used
            log.exception("recovering %s", row.sandbox)
            await self._failed(sandbox, InfraError.during("what is left of it is damaged", error))

    async def _bury(self, record: Record, driver: str) -> None:
        """Of a life that was declared failed: it is destroyed, and told as lost."""
        log.warning("%s is destroyed: %s", record.sandbox, LOST)
        try:
            await self._ending.sweep(record.sandbox, driver)
            await self._ending.bury(record, LOST)
        except DsecError:
            log.exception("destroying %s; it is tried again at the next start", record.sandbox)

    async def _inside(self, sandbox: Sandbox) -> None:
        driver = sandbox.driver
        await driver.recover(sandbox.handle)
        async with sandbox.switching, answering(sandbox):
            sandbox.guest = guest = await Guest.connect(await driver.channel(sandbox.id))
            kept = [await guest.attach(exec_) for exec_ in await guest.execs()]
        if isinstance(driver, CountsOom):
            sandbox.oom_kills = await driver.oom_kills(sandbox.id)
        for command in kept:
            await self._command(sandbox, command)
        begun = await self._turns(sandbox)
        await self._never_started(sandbox, begun | {command.id for command in kept})
        self._channels.watch(sandbox)

    async def _stopped(self, sandbox: Sandbox) -> None:
        """Finish a half stop and undo a half start: nothing runs, and what ran is told as killed."""
        await sandbox.driver.destroy(sandbox.id)
        for exec_, entry in sandbox.trajectory.entries.items():
            if entry.ended:
                continue
            last = await self._last(sandbox, exec_)
            if entry.shell:
                self._execs.sessions.killed(sandbox, entry, last)
                continue
            running = self._execs.run(sandbox, entry, Dead(exec_))
            if not running.resume(last):
                self._node.tasks.spawn(_begin(running), f"end of {exec_}")

    async def _failed(self, sandbox: Sandbox, error: DsecError) -> None:
        failure = Failure.INFRA if isinstance(error, GoneError) else error.failure
        reason = f"it did not survive the restart of its node: {error.message}"
        await self._ending.fail(Death(sandbox.id, failure, reason))

    async def _command(self, sandbox: Sandbox, command: Exec) -> None:
        """Go on with one command of the sandbox."""
        exec_ = command.id
        entry = sandbox.trajectory.entries.get(exec_)
        if entry is None:
            log.warning("%s: exec %s is not in the journal; it is ended", sandbox.id, exec_)
            await command.release()
            return
        last = await self._last(sandbox, exec_)
        if entry.shell:
            await self._execs.sessions.take_over(sandbox, entry, command, last)
            return
        running = self._execs.run(sandbox, entry, self._execs.dressed(entry, command))
        if running.stdin is not None:
            self._node.tasks.spawn(running.stdin.resume(eof=not entry.stdin_open), f"stdin of {exec_}")
        if not running.resume(last):
            self._node.tasks.spawn(_begin(running), f"start of {exec_}")

    async def _turns(self, sandbox: Sandbox) -> set[str]:
        """Go on with the commands of sessions; those that had begun."""
        sessions = self._execs.sessions
        begun = set()
        for exec_, entry in sandbox.trajectory.entries.items():
            if not entry.session or entry.ended:
                continue
            if await sessions.recover(sandbox, entry, await self._last(sandbox, exec_)):
                begun.add(exec_)
        sessions.settle(sandbox)
        return begun

    async def _never_started(self, sandbox: Sandbox, kept: set[str]) -> None:
        """Execs that were journalled only: a repeated start shall start them."""
        for exec_, entry in sandbox.trajectory.entries.items():
            if not entry.ended and exec_ not in kept and await self._last(sandbox, exec_) is None:
                sandbox.trajectory.failed(exec_)
                del sandbox.logs[exec_]

    async def _last(self, sandbox: Sandbox, exec_: str) -> Frame | None:
        """The last stored record, or one of the last where a replica lags; None only where there is none.

        Waits for the broker: its outage fails no sandbox.
        """
        subject = subjects.exec_stream(sandbox.record.project, sandbox.id, exec_)
        while True:
            try:
                stored = await self._reader.last("EXEC", subject)
                if stored is not None:
                    return unpack(stored.data)
                if not await self._reader.exists("EXEC", subject):
                    return None
            except InfraError as error:
                log.warning("%s: the log cannot be read, trying again: %s", sandbox.id, error)
            await asyncio.sleep(PAUSE)


async def _begin(running: Running) -> None:
    """As at its start, but nobody waits for the answer: a caller that asks again finds the log."""
    await running.begin()
