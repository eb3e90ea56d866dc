"""The node's clock against the broker's: deadlines are absolute, so a node whose clock is off gets no work.

The scheduler measures by heartbeats and decides; the node measures by itself, so that its own log and its
heartbeats tell its operator what is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import datetime
from typing import Final

from dsec.bus import subjects
from dsec.bus.errors import InfraError
from dsec.bus.nats.directget import answer_of
from dsec.bus.nodes import STREAM
from dsec.bus.transport import Bus
from dsec.plugins.edge.node import Node

log = logging.getLogger(__name__)

EVERY: Final = 60.0
MOST: Final = 1000
"""Milliseconds that a node's clock may be off."""


async def offset(bus: Bus, *, timeout: float = 2.0) -> int:
    """Milliseconds that this clock is ahead of the broker's, to half a round trip. Raises InfraError."""
    asked = time.time()
    answer = answer_of(await bus.request(subjects.api(f"STREAM.INFO.{STREAM}"), b"", timeout=timeout))
    heard = time.time()
    told = answer.get("ts")
    if not isinstance(told, str):
        raise InfraError(f"the broker does not tell its time: {answer.get('error')}")
    return int(((asked + heard) / 2 - datetime.fromisoformat(told).timestamp()) * 1000)


async def watch_clock(node: Node) -> None:
    """Keep `node.clock_offset`, for as long as the node runs."""
    while True:
        try:
            node.clock_offset = await offset(node.bus)
        except InfraError as error:
            log.info("the clock was not compared: %s", error)
        if abs(node.clock_offset) > MOST:
            log.error(
                "the clock is %d ms off the broker's: this node gets no work until it is set",
                node.clock_offset,
            )
        await asyncio.sleep(EVERY)
