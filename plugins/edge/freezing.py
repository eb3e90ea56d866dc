"""Freezing a sandbox and thawing it: whatever is killed in between, a frozen sandbox is not a failed one.

A frozen agent answers nobody, which is not its fault: meanwhile its silence is not counted, and whoever needs
its word thaws it for that long. The record is told of a pause only; a node that is killed in a pack finds its
sandbox frozen and `running`, and thaws it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Final

from dsec.bus.driver import CanPause, CanReclaim
from dsec.bus.errors import DsecError, Unsupported
from dsec.bus.messages import State
from dsec.plugins.edge.sandboxes import Sandbox, Sandboxes

log = logging.getLogger(__name__)

QUIET: Final = 0.5
"""Seconds that a pause waits for what the agent inside was asked before."""


async def pause(sandbox: Sandbox, sandboxes: Sandboxes, *, held: bool) -> None:
    """Freeze it and make that its state; repeatable. Raises Unsupported, DiskFull, and then it runs on.

    `held`: only a resume ends it; otherwise the next request for the inside does. What was held stays so.
    """
    driver = _pausing(sandbox)
    async with sandbox.switching:
        if sandbox.record.state is State.PAUSED:
            if held and not sandbox.record.held:
                await sandboxes.change(sandbox, State.PAUSED, held=True)
            return
        guest = sandbox.inside()
        async with contextlib.AsyncExitStack() as undo:
            sandbox.pausing = True
            undo.callback(setattr, sandbox, "pausing", False)  # noqa: FBT003 - the attribute's value
            await guest.quiet(QUIET)
            async with contextlib.AsyncExitStack() as thaw:
                thaw.push_async_callback(_thaw_shielded, sandbox, driver)
                await _freeze(sandbox, driver)
                await sandboxes.change(sandbox, State.PAUSED, held=held)
                thaw.pop_all()
        await _reclaim(sandbox)


async def resume(sandbox: Sandbox, sandboxes: Sandboxes) -> None:
    """Let it go on; repeatable. Raises Unsupported, DiskFull, and then it stays paused."""
    driver = _pausing(sandbox)
    async with sandbox.switching:
        sandbox.alive()
        if sandbox.record.state is State.PAUSED:
            await sandboxes.change(sandbox, State.RUNNING)
        if sandbox.record.state is State.RUNNING:
            await _thaw(sandbox, driver)


async def wake(sandbox: Sandbox, sandboxes: Sandboxes) -> bool:
    """Resume one that a request found asleep; whether there was need. Raises DiskFull."""
    driver = _pausing(sandbox)
    async with sandbox.switching:
        if sandbox.record.state is not State.PAUSED or sandbox.record.held:
            return False
        await sandboxes.change(sandbox, State.RUNNING)
        await _thaw(sandbox, driver)
        return True


async def hold(sandbox: Sandbox) -> None:
    """The node is cut off: freeze what runs without making that its state, and stop its commands' timeouts.

    Repeatable; who has the sandbox in hand just now finishes first, and is caught the next time.
    """
    driver = sandbox.driver
    if sandbox.switching.locked() or sandbox.record.state is not State.RUNNING:
        return
    if isinstance(driver, CanPause):
        async with sandbox.switching:
            await _freeze(sandbox, driver)
            for running in sandbox.running.values():
                running.leader.hold()


async def let_go(sandbox: Sandbox) -> None:
    """Undo `hold`; repeatable."""
    driver = sandbox.driver
    if isinstance(driver, CanPause):
        async with sandbox.switching:
            if sandbox.record.state is State.RUNNING:
                await _thaw(sandbox, driver)
                for running in sandbox.running.values():
                    running.leader.go_on()


@contextlib.asynccontextmanager
async def frozen(sandbox: Sandbox) -> AsyncIterator[None]:
    """Nothing inside runs meanwhile; a paused or failed sandbox does not anyway."""
    driver = sandbox.driver
    async with sandbox.switching:
        if sandbox.record.state is not State.RUNNING or not isinstance(driver, CanPause):
            yield
            return
        try:
            await _freeze(sandbox, driver)
            yield
        finally:
            await _thaw_shielded(sandbox, driver)


@contextlib.asynccontextmanager
async def answering(sandbox: Sandbox) -> AsyncIterator[None]:
    """The agent inside can answer meanwhile; a paused sandbox is frozen again afterwards.

    Whoever else may freeze or thaw the sandbox is kept out by `switching`, which the caller holds.
    """
    driver = sandbox.driver
    if not isinstance(driver, CanPause):
        yield
        return
    await _thaw(sandbox, driver)
    try:
        yield
    finally:
        if sandbox.record.state is State.PAUSED:
            await asyncio.shield(_freeze(sandbox, driver))


async def _freeze(sandbox: Sandbox, driver: CanPause) -> None:
    if sandbox.guest is not None:
        sandbox.guest.excuse()
    await driver.pause(sandbox.id)


async def _reclaim(sandbox: Sandbox) -> None:
    """A pause that the kernel takes no memory from is a pause all the same."""
    if isinstance(sandbox.driver, CanReclaim):
        try:
            await sandbox.driver.reclaim(sandbox.id)
        except DsecError as error:
            log.warning("%s keeps its memory: %s", sandbox.id, error)


async def _thaw(sandbox: Sandbox, driver: CanPause) -> None:
    await driver.resume(sandbox.id)
    if sandbox.guest is not None:
        sandbox.guest.expect()


async def _thaw_shielded(sandbox: Sandbox, driver: CanPause) -> None:
    try:
        await asyncio.shield(_thaw(sandbox, driver))
    except DsecError as error:  # it died meanwhile, and is told as failed; or `resume` tries again
        log.warning("%s was not thawed: %s", sandbox.id, error)


def _pausing(sandbox: Sandbox) -> CanPause:
    if not isinstance(sandbox.driver, CanPause):
        raise Unsupported(f"backend {sandbox.handle.driver!r} cannot pause", field="backend")
    return sandbox.driver
