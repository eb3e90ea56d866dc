"""Watching the channels to the insides: a broken one is made again unless the sandbox is dead.

The death of PID 1, not a closed channel, is a sandbox's failure; an inside that lives and does not answer has
crippled its own agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from dsec.bus.chronus.guest import Guest
from dsec.bus.driver import Death
from dsec.bus.errors import DsecError, Failure, GoneError
from dsec.plugins.edge.ending import Ending
from dsec.plugins.edge.freezing import answering
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.sandboxes import Sandbox

log = logging.getLogger(__name__)

SETTLE: Final = 0.1
"""Seconds in which the driver hears of a death that closed the channel."""


class Channels:
    """Keeps the channels of one node's sandboxes."""

    def __init__(self, node: Node, ending: Ending) -> None:
        self._node = node
        self._ending = ending

    def watch(self, sandbox: Sandbox) -> None:
        """Look after the sandbox's channel for as long as it lives."""
        self._node.tasks.spawn(self._keep(sandbox), f"channel of {sandbox.id}")

    async def _keep(self, sandbox: Sandbox) -> None:
        while (guest := sandbox.guest) is not None:
            await guest.wait_closed()
            if sandbox.guest is not guest or sandbox.ending is not None:
                return
            await asyncio.sleep(SETTLE)
            try:
                await self._again(sandbox)
            except DsecError as error:
                death = Death(sandbox.id, Failure.LIMIT, f"the agent inside is lost: {error.message}")
                await self._ending.fail(death)

    async def _again(self, sandbox: Sandbox) -> None:
        """Connect again and go on with the commands; or tell the death. Raises AgentCrippled."""
        death = None
        with contextlib.suppress(GoneError):
            death = await sandbox.driver.inspect(sandbox.id)
        if death is not None:
            await self._ending.fail(death)
            return
        log.warning("%s: the channel broke; connecting again", sandbox.id)
        async with sandbox.switching, answering(sandbox):
            guest = await Guest.connect(await sandbox.driver.channel(sandbox.id))
            if sandbox.guest is None:
                guest.close()
                return
            sandbox.guest = guest
            for exec_, running in list(sandbox.running.items()):
                if not running.entry.session and not running.leader.exited.done():
                    running.leader.adopt(await guest.attach(exec_))
