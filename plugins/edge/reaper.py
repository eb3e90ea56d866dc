"""What ends sandboxes by itself: their time to live, idleness, and the death of their inside."""

from __future__ import annotations

import asyncio
import logging
import time

from dsec.bus.driver import Driver
from dsec.bus.errors import DsecError
from dsec.plugins.edge.ending import Ending
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.ports import expire
from dsec.plugins.edge.sandboxes import Sandbox
from dsec.plugins.edge.watches import expire as expire_watches

log = logging.getLogger(__name__)

EVERY = 0.5
EXPIRE_EVERY = 3600.0


def due(sandbox: Sandbox, *, now: float, monotonic: float) -> str | None:
    """Why a sandbox is to be destroyed, if it is. `now` is unix seconds. Commands that run are use."""
    if sandbox.doomed:
        return "its destroy failed and is tried again"
    if now * 1000 >= sandbox.record.expires:
        return "its time to live is over"
    idle = sandbox.record.spec.idle_ttl
    if idle is not None and not sandbox.busy and monotonic - sandbox.used >= idle:
        return f"it was idle for {idle:g} s"
    return None


async def reap(node: Node, ending: Ending) -> None:
    """Destroy what is due, for as long as the node runs."""
    expiry = time.monotonic() + EXPIRE_EVERY
    while True:
        if time.monotonic() >= expiry:
            await node.journal.expire()
            expiry = time.monotonic() + EXPIRE_EVERY
        for sandbox in node.sandboxes:
            expire(sandbox, time.monotonic())
            expire_watches(sandbox, time.monotonic())
            if sandbox.busy:
                sandbox.used = time.monotonic()
            reason = due(sandbox, now=time.time(), monotonic=time.monotonic())
            if reason is not None and sandbox.ending is None:
                node.tasks.spawn(ending.destroy(sandbox, reason), f"reaping of {sandbox.id}")
        await asyncio.sleep(EVERY)


async def watch(driver: Driver, ending: Ending) -> None:
    """Tell deaths as failures, for as long as the node runs."""
    async for death in driver.watch():
        try:
            await ending.fail(death)
        except DsecError:
            log.exception("failing %s", death.sandbox)
