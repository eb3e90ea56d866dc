"""Placement in groups: one question for many, late ones hold nobody up, errors reach whom they concern."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import orjson
import pytest

from dsec.bus import subjects
from dsec.bus.core.placing import LATE, Placer
from dsec.bus.errors import DeadlineExceeded, NoCapacity
from dsec.bus.handlers import failed, ok
from dsec.bus.local import Hub, LocalBus
from dsec.bus.messages import Place
from dsec.bus.transport import Received

ASK = Place(backend="sim")
Answering = Callable[[Place], bytes | None]


class World:
    """A placer and a scheduler that answers as `answer` says; `questions` are those it heard."""

    def __init__(self, core: LocalBus, scheduler: LocalBus, answer: Answering) -> None:
        self.questions: list[Place] = []
        self.answer = answer
        self.bus = core
        self._scheduler = scheduler
        self._tasks: set[asyncio.Task[None]] = set()

    def heard(self, message: Received) -> None:
        place = Place.model_validate_json(message.data)
        self.questions.append(place)
        answer = self.answer(place)
        if answer is not None:
            task = asyncio.create_task(self._scheduler.publish(message.reply, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


@contextlib.asynccontextmanager
async def world(answer: Answering) -> AsyncIterator[tuple[World, Placer]]:
    hub = Hub()
    core, scheduler = hub.bus("core"), hub.bus("scheduler")
    made = World(core, scheduler, answer)
    await scheduler.subscribe(subjects.SCHED_PLACE, made.heard)
    async with Placer.running(core) as placer:
        yield made, placer


def granted(place: Place) -> bytes:
    return ok({"node": "n-0", "nodes": [f"n-{number}" for number in range(place.count)]})


async def many(placer: Placer, count: int, place: Place = ASK, within: float = 5.0) -> list[str]:
    until = time.time() + within
    return await asyncio.gather(*(placer.place(place, until) for _ in range(count)))


async def test_creates_of_one_moment_are_one_question() -> None:
    async with world(granted) as (made, placer):
        assert sorted(await many(placer, 7)) == [f"n-{number}" for number in range(7)]
        assert [question.count for question in made.questions] == [7]


async def test_those_that_come_meanwhile_go_together_with_the_next_question() -> None:
    async with world(granted) as (made, placer):
        first = asyncio.ensure_future(many(placer, 2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        then = [asyncio.ensure_future(many(placer, 1)) for _ in range(5)]
        await asyncio.gather(first, *then)
        assert [question.count for question in made.questions] == [2, 5]


async def test_different_asks_are_different_questions() -> None:
    async with world(granted) as (made, placer):
        await asyncio.gather(many(placer, 2), many(placer, 3, Place(backend="sim", cpu=2.0)))
        assert sorted((question.cpu or 0.0, question.count) for question in made.questions) == [
            (0, 2),
            (2, 3),
        ]


async def test_an_unanswered_question_does_not_hold_up_those_that_come_later() -> None:
    def silent_once(place: Place) -> bytes | None:
        return granted(place) if len(made.questions) > 1 else None

    async with world(silent_once) as (made, placer):
        lost = asyncio.ensure_future(many(placer, 1, within=2.0))
        await asyncio.sleep(2 * LATE)
        assert await many(placer, 3)
        assert not lost.done()
        with contextlib.suppress(DeadlineExceeded):
            await lost


async def test_when_there_is_room_for_fewer_the_others_are_told() -> None:
    async with world(lambda _: ok({"node": "n-0", "nodes": ["n-0", "n-1"]})) as (_, placer):
        until = time.time() + 5
        outcomes = await asyncio.gather(*(placer.place(ASK, until) for _ in range(3)), return_exceptions=True)
        assert outcomes[:2] == ["n-0", "n-1"]
        assert isinstance(outcomes[2], NoCapacity)
        assert outcomes[2].retry_after


async def test_a_schedulers_error_reaches_all_that_asked() -> None:
    async with world(lambda _: failed(NoCapacity("none is healthy"))) as (_, placer):
        for one in await asyncio.gather(*(many(placer, 1) for _ in range(3)), return_exceptions=True):
            assert isinstance(one, NoCapacity)


async def test_without_a_scheduler_there_is_no_capacity() -> None:
    async with Placer.running(Hub().bus("core")) as placer:
        with pytest.raises(NoCapacity, match="no scheduler"):
            await many(placer, 2, within=0.2)


async def test_one_that_is_cancelled_takes_no_others_with_it() -> None:
    async with world(granted) as (_, placer):
        gone = asyncio.ensure_future(many(placer, 1))
        stays = asyncio.ensure_future(many(placer, 1))
        await asyncio.sleep(0)
        gone.cancel()
        assert len(await stays) == 1


async def test_a_scheduler_of_an_older_version_answers_with_one_node() -> None:
    async with world(lambda _: orjson.dumps({"ok": {"node": "n-old"}})) as (_, placer):
        assert await many(placer, 2) == ["n-old", "n-old"]
