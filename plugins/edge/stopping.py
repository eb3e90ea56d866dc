"""Stopping a sandbox and starting it again on the same writable layer (docs/adr/0025-stop-and-start.md).

A stop is in the journal before its first step and a start only with its last, so whenever the node is killed,
its successor finds a sandbox that is stopped, or one that runs: a half stop is finished, a half start undone.
Each runs as a task of its own, which a destroy ends first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from dsec.bus.chronus.guest import Guest
from dsec.bus.driver import Order
from dsec.bus.errors import DsecError, NoSuchSandbox
from dsec.bus.messages import State
from dsec.plugins.edge.admission import admit, load
from dsec.plugins.edge.channels import Channels
from dsec.plugins.edge.leader import Leader
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.remote import refuse_away
from dsec.plugins.edge.sandboxes import Sandbox
from dsec.plugins.edge.undo import Undo, undoing

log = logging.getLogger(__name__)

SIGTERM = 15


class Stopping:
    """Stops and starts sandboxes of one node."""

    def __init__(self, node: Node, channels: Channels) -> None:
        self._node = node
        self._channels = channels

    async def stop(self, sandbox: Sandbox, grace: float) -> None:
        """End everything inside and keep the writable layer; repeatable. Raises SpecError, DiskFull.

        Commands are asked to end (SIGTERM) and have `grace` seconds; then they are killed, and told so.
        """
        if grace and sandbox.record.state is State.RUNNING:
            await _ask_to_end(sandbox, grace)
        await self._turn(sandbox, self._stop(sandbox), "stop")

    async def start(self, sandbox: Sandbox) -> None:
        """Let it run again from what it has written; repeatable.

        Raises NoCapacity (the node has promised its resources to others meanwhile), SpecError, DiskFull,
        LimitError, MissingTool, InfraError, and then it is stopped as before.
        """
        await self._turn(sandbox, self._start(sandbox), "start")

    async def _turn(self, sandbox: Sandbox, work: Coroutine[Any, Any, None], what: str) -> None:
        """Have it done whatever becomes of the caller, unless a destroy comes."""
        if sandbox.doomed:
            work.close()
            raise NoSuchSandbox(f"{sandbox.id} is being destroyed", field="sandbox")
        task = self._node.tasks.spawn(work, f"{what} of {sandbox.id}")
        if task is None:
            raise NoSuchSandbox("the node is stopping; the sandbox stays as it is")
        sandbox.turning.add(task)
        task.add_done_callback(sandbox.turning.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise NoSuchSandbox(f"{sandbox.id} was destroyed meanwhile", field="sandbox") from None
            raise

    async def _stop(self, sandbox: Sandbox) -> None:
        async with sandbox.switching:
            if sandbox.record.state is State.STOPPED:
                return
            sandbox.startable()
            await self._node.sandboxes.change(sandbox, State.STOPPED)
            sandbox.halt()
            await sandbox.driver.destroy(sandbox.id)
            log.debug("%s is stopped", sandbox.id)

    async def _start(self, sandbox: Sandbox) -> None:
        async with sandbox.switching:
            if sandbox.record.state in {State.RUNNING, State.PAUSED}:
                return
            self._admit(sandbox)
            await self._node.sandboxes.change(sandbox, State.STARTING)
            async with undoing() as undo:
                undo.later("the start", lambda: self._still(sandbox))
                await self._stages(sandbox, undo)
                undo.keep()
        self._channels.watch(sandbox)
        log.debug("%s is started", sandbox.id)

    def _admit(self, sandbox: Sandbox) -> None:
        """Its place is kept, its cores and memory may be promised to others by now."""
        node = self._node
        sandbox.startable()
        refuse_away(node, sandbox.handle.driver)
        now = load(node.sandboxes.promised())
        admit(
            sandbox.record.applied,
            now=replace(now, sandboxes=now.sandboxes - 1),
            capacity=node.capacity,
            disk_free=node.disk_free(),
            draining=node.draining,
        )

    async def _stages(self, sandbox: Sandbox, undo: Undo) -> None:
        node, record = self._node, sandbox.record
        rootfs = await node.images.recover(sandbox.id)
        undo.later("the inside", lambda: sandbox.driver.destroy(sandbox.id))
        handle = await sandbox.driver.create(Order(sandbox.id, record.spec, record.applied), rootfs)
        guest = await Guest.connect(await sandbox.driver.channel(sandbox.id))

        async def close() -> None:
            guest.close()

        undo.later("the channel", close)
        await node.sandboxes.revive(sandbox, handle)
        sandbox.guest, sandbox.oom_kills = guest, 0

    async def _still(self, sandbox: Sandbox) -> None:
        await self._node.sandboxes.change(sandbox, State.STOPPED)


async def _ask_to_end(sandbox: Sandbox, grace: float) -> None:
    """SIGTERM to each command's leader."""
    leaders = [running.leader for running in sandbox.running.values()]
    if not leaders:
        return

    async def ask(leader: Leader) -> None:
        try:
            await leader.command.signal(SIGTERM)
        except DsecError as error:
            log.debug("%s: %s", sandbox.id, error)

    asking = [asyncio.create_task(ask(leader)) for leader in leaders]
    try:
        await asyncio.wait([leader.exited for leader in leaders], timeout=grace)
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
