"""Whether a node lives, as a scheduler that has just begun to listen tells it."""

from __future__ import annotations

import asyncio
import time

import pytest

from dsec.bus import subjects
from dsec.bus.errors import NodeLost
from dsec.bus.handlers import result
from dsec.bus.messages import Place
from dsec.bus.transport import Received
from dsec.plugins.scheduler import Scheduler
from dsec.plugins.scheduler.silence import Patience
from tests.scheduler.test_view import beat

SUSPECT = 1.0


async def fresh() -> Scheduler:
    scheduler = Scheduler(Patience(suspect=SUSPECT))
    scheduler._listened.set()
    return scheduler


def hear(scheduler: Scheduler) -> None:
    data = beat(time=round(time.time() * 1000)).model_dump_json().encode()
    scheduler.heard(Received(subjects.node_heartbeat("n-one"), "", data))


async def asked(scheduler: Scheduler, node: str) -> str:
    data = Place(backend="", at=node).model_dump_json().encode()
    return str(result(await scheduler.place(Received(subjects.SCHED_PLACE, "", data)))["node"])


async def test_a_node_that_is_heard_late_is_waited_for() -> None:
    scheduler = await fresh()
    waiting = asyncio.ensure_future(asked(scheduler, "n-one"))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    hear(scheduler)
    assert await waiting == "n-one"


async def test_a_node_that_is_never_heard_is_dead_once_it_would_be_suspect() -> None:
    began, scheduler = time.monotonic(), await fresh()
    hear(scheduler)
    with pytest.raises(NodeLost):
        await asked(scheduler, "n-two")
    assert time.monotonic() - began >= SUSPECT
    began = time.monotonic()
    with pytest.raises(NodeLost):
        await asyncio.wait_for(asked(scheduler, "n-two"), SUSPECT)


async def test_a_node_that_fell_silent_is_dead_at_once() -> None:
    scheduler = await fresh()
    hear(scheduler)
    scheduler._began += 60
    await asyncio.sleep(SUSPECT)
    with pytest.raises(NodeLost):
        await asyncio.wait_for(asked(scheduler, "n-one"), 1.0)
