"""A part of the platform as others see it: it announces itself, beats, answers discovery, tells its leaving.

    async with member(wire, Service("core", "x7…")): …

Announcements are for people and tools; nothing is decided by them. Whether a node lives is told by its own
heartbeats, and who may announce what is pinned by the broker's permissions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator
from typing import Final, Literal

from dsec.bus import subjects
from dsec.bus.errors import InfraError
from dsec.bus.messages import Announce, PluginHeartbeat
from dsec.bus.micro import Service, discoverable
from dsec.bus.transport import Bus
from dsec.bus.workload import workload_of

EVERY: Final = 1.0
"""Seconds between heartbeats."""
State = Literal["joined", "draining", "left"]


def here(**more: str) -> dict[str, str]:
    """Metadata of a service in this process."""
    return {"host": socket.gethostname(), "pid": str(os.getpid()), **more}


async def announce(bus: Bus, service: Service, state: State) -> None:
    """Tell `state`; without a broker nobody hears it."""
    body = Announce(
        kind=service.name,
        id=service.id,
        state=state,
        time=int(time.time() * 1000),
        metadata=dict(service.metadata),
    )
    with contextlib.suppress(InfraError):
        await bus.publish(
            subjects.plugin("announce", service.name, service.id), body.model_dump_json().encode()
        )


@contextlib.asynccontextmanager
async def member(bus: Bus, service: Service) -> AsyncIterator[None]:
    """`service` is seen while the block runs. Raises BrokerDown, PolicyError (not with these credentials)."""
    async with discoverable(bus, service):
        await announce(bus, service, "joined")
        beating = asyncio.create_task(_beat(bus, service), name=f"heartbeat of {service.id}")
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            await announce(bus, service, "left")


async def _beat(bus: Bus, service: Service) -> None:
    """Beat, and announce again what a reconnection has made others miss."""
    subject, connected = subjects.plugin("heartbeat", service.name, service.id), True
    while True:
        if bus.connected and not connected:
            await announce(bus, service, "joined")
        connected = bus.connected
        with contextlib.suppress(InfraError):
            await bus.publish(subject, heartbeat(bus, service).model_dump_json().encode())
        await asyncio.sleep(EVERY)


def heartbeat(bus: Bus, service: Service) -> PluginHeartbeat:
    """What the service tells of itself now."""
    load = workload_of(bus)
    return PluginHeartbeat(
        kind=service.name,
        id=service.id,
        time=int(time.time() * 1000),
        busy=load.busy,
        requests=sum(one.requests for one in load.endpoints.values()),
        errors=sum(one.errors for one in load.endpoints.values()),
    )
