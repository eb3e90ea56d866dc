"""The node's heartbeat: totals only, once a second, and soon after what it promised has changed.

The scheduler counts its own placements until a heartbeat shows them; a node whose sandboxes come and go
within the second would look full by placements that are long gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from dsec.bus import subjects
from dsec.bus.driver import CanConnect, CanPause, Driver, MayBeAway
from dsec.bus.errors import InfraError
from dsec.bus.messages import Heartbeat
from dsec.plugins.edge.admission import load
from dsec.plugins.edge.node import Node

EVERY: Final = 1.0
SOONEST: Final = 0.1
"""Seconds that lie between two heartbeats, at the most and at the least."""


def capabilities(driver: Driver) -> list[str]:
    """What can be done with its sandboxes besides creating and destroying them."""
    able = {"pause": isinstance(driver, CanPause), "stop": True, "ports": isinstance(driver, CanConnect)}
    return [name for name, can in able.items() if can]


def here(driver: Driver) -> bool:
    """Whether the driver can be given work now."""
    return not (isinstance(driver, MayBeAway) and driver.away)


def heartbeat(node: Node) -> Heartbeat:
    """What the node tells of itself now."""
    now = load(node.sandboxes.promised())
    return Heartbeat(
        node=node.name,
        epoch=node.journal.epoch,
        time=int(time.time() * 1000),
        backends={name: capabilities(driver) for name, driver in node.drivers.items() if here(driver)},
        cpu=node.capacity.cpu,
        memory=node.capacity.memory,
        cpu_used=now.cpu,
        memory_used=now.memory,
        sandboxes=now.sandboxes,
        draining=node.draining,
        offset=node.clock_offset,
    )


async def appear(node: Node) -> None:
    """The first one: who is asked to place after this has heard of the node, if a broker is there."""
    with contextlib.suppress(InfraError):
        await _tell(node)
        await node.bus.round_trip()


async def beat(node: Node) -> None:
    """Tell it for as long as the node runs."""
    changed = node.sandboxes.changed
    while True:
        changed.clear()
        await node.open.wait()
        with contextlib.suppress(InfraError):  # not connected: silence is what the watcher needs to hear
            await _tell(node)
        await asyncio.sleep(SOONEST)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVERY - SOONEST):
                await changed.wait()


async def _tell(node: Node) -> None:
    await node.bus.publish(subjects.node_heartbeat(node.name), heartbeat(node).model_dump_json().encode())
