"""Backends in processes of their own, as the edge uses them: they join, go away, and come back.

Names of those that were here are kept, so that a create for one that is away is given back (`no_capacity`)
rather than refused as unknown, also right after a restart of the node.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from dsec.bus.driver import Death, Driver, MayBeAway
from dsec.bus.errors import Failure, GoneError, NoCapacity
from dsec.bus.files import write_private
from dsec.bus.messages import State
from dsec.bus.remote.proxy import RemoteDriver
from dsec.bus.remote.remotes import Remotes
from dsec.plugins.edge.ending import Ending
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.reaper import watch
from dsec.plugins.edge.recovery import Recovery
from dsec.plugins.edge.sandboxes import Sandbox

log = logging.getLogger(__name__)

_WITHOUT: Final = {State.FAILED, State.STOPPED, State.STARTING}
"""States in which the driver has nothing to recover."""
NAMES: Final = "remote-drivers.json"


def refuse_away(node: Node, backend: str) -> None:
    """Raises NoCapacity when the backend's driver runs in a process of its own that is away now."""
    driver = node.drivers.get(backend)
    away = backend in names(node.home) if driver is None else is_away(driver)
    if away:
        raise NoCapacity(f"the driver {backend} of this node is away")


def is_away(driver: Driver) -> bool:
    """Whether the driver cannot be given work now."""
    return isinstance(driver, MayBeAway) and driver.away


def names(home: Path) -> frozenset[str]:
    """Drivers in processes of their own that this node has had."""
    try:
        return frozenset(json.loads((home / NAMES).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return frozenset()


class Backends:
    """What the edge does when a driver joins; made by `running` only."""

    def __init__(self, node: Node, ending: Ending, recovery: Recovery) -> None:
        self._node = node
        self._ending = ending
        self._recovery = recovery
        self._watched: set[RemoteDriver] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, node: Node, ending: Ending, recovery: Recovery) -> AsyncIterator[None]:
        """Drivers join and leave while the block runs; those known from before are asked first."""
        backends, own = cls(node, ending, recovery), frozenset(node.drivers)
        known = names(node.home) - own
        async with Remotes.running(node.bus, node.name, taken=own, known=known, joined=backends.joined):
            yield

    async def joined(self, name: str, driver: RemoteDriver) -> None:
        """Have it take over what another instance of it started. Raises NodeLost when it has gone again."""
        node = self._node
        self._remember(name)
        node.drivers[name] = driver
        if driver not in self._watched:
            self._watched.add(driver)
            node.tasks.spawn(watch(driver, self._ending), f"watch of {name}")
        for sandbox in node.sandboxes:
            if sandbox.handle.driver == name:
                sandbox.driver = driver
                await self._recover(sandbox, driver)
        node.tasks.spawn(self._recovery.late(name), f"recovery of what {name} has")
        node.sandboxes.changed.set()

    def _remember(self, name: str) -> None:
        known = names(self._node.home)
        if name not in known:
            write_private(self._node.home / NAMES, json.dumps(sorted(known | {name})) + "\n")

    async def _recover(self, sandbox: Sandbox, driver: RemoteDriver) -> None:
        if sandbox.record.state in _WITHOUT or sandbox.doomed:
            return
        try:
            await driver.recover(sandbox.handle)
        except GoneError as error:
            reason = f"it died while its driver was away: {error.message}"
            await self._ending.fail(Death(sandbox.id, Failure.INFRA, reason))
