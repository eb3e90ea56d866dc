"""Heartbeats tell what is promised, soon enough for sandboxes that come and go within a second."""

from __future__ import annotations

import asyncio

import pytest

from dsec.bus import subjects
from dsec.bus.handlers import decode
from dsec.bus.messages import Heartbeat
from dsec.bus.transport import Received
from dsec.sdk import Client
from tests.edge.support import Site

pytestmark = pytest.mark.node


async def test_each_of_several_short_lived_sandboxes_is_seen(site: Site, client: Client) -> None:
    seen: list[int] = []

    def heard(message: Received) -> None:
        seen.append(decode(Heartbeat, message.data).sandboxes)

    async with site.stack.wire("scheduler") as scheduler:
        await scheduler.subscribe(subjects.ALL_HEARTBEATS, heard)
        for _ in range(5):
            async with client.sandbox(backend="container", image="base"):
                await asyncio.sleep(0.25)
            await asyncio.sleep(0.25)
    rises = sum(before == 0 and after > 0 for before, after in zip([0, *seen], seen, strict=False))
    assert rises == 5
