"""Heartbeats tell what is promised, soon enough for sandboxes that come and go within a second."""

from __future__ import annotations

import asyncio

import pytest

from dsec.bus import subjects
from dsec.bus.handlers import decode
from dsec.bus.messages import Heartbeat
from dsec.bus.transport import Received
from dsec.plugins.edge.heartbeat import EVERY
from dsec.sdk import Client
from tests.edge.support import Site
from tests.wire.support import until

pytestmark = pytest.mark.node


async def test_each_of_several_short_lived_sandboxes_is_seen(site: Site, client: Client) -> None:
    seen: list[int] = []

    def heard(message: Received) -> None:
        seen.append(decode(Heartbeat, message.data).sandboxes)

    async with site.stack.wire("scheduler") as scheduler:
        await scheduler.subscribe(subjects.ALL_HEARTBEATS, heard)
        await until(lambda: seen[-1:] == [0], within=5)
        async with asyncio.timeout(
            10 * EVERY / 2
        ):  # ten changes; told by the clock alone, they take twice that
            for _ in range(5):
                async with client.sandbox(backend="container", image="base"):
                    await until(lambda: seen[-1:] == [1], within=5)
                await until(lambda: seen[-1:] == [0], within=5)
