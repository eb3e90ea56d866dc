"""Heartbeats tell what is promised, soon enough for sandboxes that come and go within a second."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from dsec.bus import subjects
from dsec.bus.handlers import decode
from dsec.bus.messages import Heartbeat, Place
from dsec.bus.transport import Received
from dsec.plugins.edge import heartbeat as beating
from dsec.plugins.edge.heartbeat import EVERY
from dsec.plugins.edge.node import Node
from dsec.sdk import Client
from tests.edge.support import Site
from tests.wire.support import until


@pytest.mark.node
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


async def test_a_heartbeat_ends_when_it_is_cancelled_as_something_changes() -> None:
    changed, opened = asyncio.Event(), asyncio.Event()
    opened.set()
    node = SimpleNamespace(name="n-one", open=opened, sandboxes=SimpleNamespace(changed=changed))
    told = []

    async def publish(*_: object) -> None:
        told.append(1)

    node.bus = SimpleNamespace(publish=publish)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beating, "heartbeat", lambda _: Place(backend=""))
        task = asyncio.create_task(beating.beat(cast("Node", node)))
        await asyncio.sleep(2 * beating.SOONEST)
        assert told
        changed.set()
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()
