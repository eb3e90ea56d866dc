"""The node's heartbeat: once a second, totals only."""

from __future__ import annotations

import asyncio
import contextlib
import time

from dsec.bus import subjects
from dsec.bus.driver import CanPause, Driver
from dsec.bus.errors import InfraError
from dsec.bus.messages import Heartbeat
from dsec.plugins.edge.admission import load
from dsec.plugins.edge.node import Node

EVERY = 1.0


def capabilities(driver: Driver) -> list[str]:
    """What the driver implements besides the lifecycle."""
    return ["pause"] if isinstance(driver, CanPause) else []


def heartbeat(node: Node) -> Heartbeat:
    """What the node tells of itself now."""
    now = load(node.sandboxes.promised())
    return Heartbeat(
        node=node.name,
        epoch=node.journal.epoch,
        time=int(time.time() * 1000),
        backends={name: capabilities(driver) for name, driver in node.drivers.items()},
        cpu=node.capacity.cpu,
        memory=node.capacity.memory,
        cpu_used=now.cpu,
        memory_used=now.memory,
        sandboxes=now.sandboxes,
        draining=node.draining,
    )


async def beat(node: Node) -> None:
    """Tell it every second, for as long as the node runs."""
    subject = subjects.node_heartbeat(node.name)
    while True:
        with contextlib.suppress(InfraError):  # not connected: silence is what the watcher needs to hear
            await node.bus.publish(subject, heartbeat(node).model_dump_json().encode())
        await asyncio.sleep(EVERY)
