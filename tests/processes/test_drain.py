"""Leaving in good order, and the cap on what one process does at once."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from dsec.bus.errors import DsecError
from dsec.bus.handlers import ok, result, serving_internal
from dsec.bus.local import Hub
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Received
from tests.wire.support import until


class Part:
    """Answers with its name after a while; knows how much it did at once."""

    def __init__(self, name: str, seconds: float = 0.005) -> None:
        self.name, self.seconds = name, seconds
        self.busy, self.most, self.done = 0, 0, 0

    async def work(self, _: Received) -> bytes:
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.busy -= 1
        self.done += 1
        return ok({"by": self.name})


def connected(url: str) -> contextlib.AbstractAsyncContextManager[Wire]:
    return Wire.connect(url, Credentials.new(Role.CORE))


async def test_one_of_two_parts_drains_under_load_and_no_request_is_lost(tmp_path: Path) -> None:
    stays, leaves = Part("stays"), Part("leaves")
    async with (
        Broker.running(tmp_path) as broker,
        connected(broker.url) as client,
        connected(broker.url) as one,
        connected(broker.url) as other,
        serving_internal(one, "work", stays.work, queue="q"),
    ):
        answers: list[str] = []

        async def ask() -> None:
            answers.append(result((await client.request("work", b"", timeout=10)).data)["by"])

        async def load() -> None:
            for _ in range(60):
                await ask()

        async with serving_internal(other, "work", leaves.work, queue="q"):
            workers = [asyncio.create_task(load()) for _ in range(32)]
            await until(lambda: leaves.done > 0, within=5)
            assert await other.workload.drain(2) == 0
            answered = leaves.done
        await asyncio.gather(*workers)
    assert len(answers) == 32 * 60
    assert answers.count("leaves") == answered == leaves.done > 0


async def test_work_that_does_not_end_is_told_after_the_deadline(tmp_path: Path) -> None:
    slow = Part("slow", seconds=30)
    async with (
        Broker.running(tmp_path) as broker,
        connected(broker.url) as client,
        connected(broker.url) as other,
        serving_internal(other, "work", slow.work),
    ):
        asking = asyncio.create_task(client.request("work", b"", timeout=5))
        await until(lambda: slow.busy == 1, within=5)
        assert await other.workload.drain(0.2) == 1
        with pytest.raises(DsecError):  # nobody listens any more
            await client.request("work", b"", timeout=1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_the_cap_holds_over_all_subjects_and_everything_is_answered(tmp_path: Path) -> None:
    part = Part("capped", seconds=0.01)
    async with (
        Broker.running(tmp_path) as broker,
        connected(broker.url) as client,
        connected(broker.url) as wire,
    ):
        wire.workload.cap(3)
        async with serving_internal(wire, "one", part.work), serving_internal(wire, "two", part.work):
            both = [client.request(subject, b"", timeout=5) for subject in ("one", "two") * 40]
            await asyncio.gather(*both)
    assert (part.done, part.most) == (80, 3)


async def test_draining_in_one_process_gives_what_was_sent_before() -> None:
    hub, part = Hub(), Part("local")
    bus = hub.bus("x")
    seen: list[str] = []
    subscription = await bus.subscribe("work", lambda message: seen.append(message.subject))
    await bus.publish("work", b"")
    await subscription.drain()
    assert seen == ["work"]
    assert part.done == 0
