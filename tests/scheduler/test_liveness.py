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
from dsec.plugins.scheduler import HUNG, TICK, Scheduler
from dsec.plugins.scheduler.silence import Patience
from tests.scheduler.test_view import beat

SUSPECT = 1.0


async def fresh(suspect: float = SUSPECT) -> Scheduler:
    scheduler = Scheduler(Patience(suspect=suspect))
    scheduler._listened.set()
    return scheduler


def hear(scheduler: Scheduler, node: str = "n-one") -> None:
    told = beat(time=round(time.time() * 1000)).model_copy(update={"node": node})
    scheduler.heard(Received(subjects.node_heartbeat(node), "", told.model_dump_json().encode()))


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


async def test_nobody_is_dead_because_we_were_cut_off_or_stood_still() -> None:
    for connected, steps in ((False, 200), (True, 1)):
        scheduler = await fresh()
        hear(scheduler)
        now = scheduler._looked
        for step in range(steps):
            scheduler.look(now + 50 * (step + 1) / steps, connected=connected)
        assert scheduler._view.alive("n-one", now + 50 + SUSPECT / 2)
        assert not scheduler._view.alive("n-one", now + 50 + 2 * SUSPECT)


async def test_a_node_that_was_never_heard_is_waited_for_longer_when_we_were_cut_off() -> None:
    scheduler = await fresh()
    waited = scheduler._looked + SUSPECT
    scheduler.look(scheduler._looked + 0.5, connected=False)
    with pytest.raises(NodeLost):
        await asked(scheduler, "n-one")
    assert time.monotonic() >= waited + 0.5


async def test_of_several_nodes_all_that_are_silent_at_once_are_given_time() -> None:
    scheduler = await fresh(suspect=5.0)
    hear(scheduler)
    hear(scheduler, "n-two")
    now = scheduler._heard
    ticks = [now + TICK * step for step in range(1, 400)]
    for tick in ticks:
        scheduler.look(tick, connected=True)
        wanted = tick - now < HUNG
        assert not wanted or scheduler._view.alive("n-one", tick)
    assert not scheduler._view.alive("n-one", ticks[-1])


async def test_of_several_nodes_one_that_is_silent_is_dead() -> None:
    scheduler = await fresh()
    hear(scheduler)
    now = scheduler._heard
    for step in range(1, 40):
        hear(scheduler, "n-two")
        scheduler._heard = now + TICK * step
        scheduler.look(now + TICK * step, connected=True)
    assert not scheduler._view.alive("n-one", now + TICK * 40)
