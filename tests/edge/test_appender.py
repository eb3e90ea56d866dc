"""The appender over a real broker, which is killed in the middle."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections import defaultdict
from pathlib import Path

import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from dsec.bus import ids, subjects
from dsec.bus.errors import BrokerDown, LimitError
from dsec.bus.frames import Frame, Kind
from dsec.bus.nats.appender import Appender
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire
from tests.edge.support import NODE, folded, running_streams, stored
from tests.wire.support import Stack

PROJECT = "p-default"


def stream_subject() -> str:
    return subjects.exec_stream(PROJECT, ids.sandbox_on(NODE), ids.exec_of(ids.new_operation()))


async def test_a_record_is_stored_once_its_future_is_done(stack: Stack, wire: Wire) -> None:
    subject = stream_subject()
    async with Appender.running(wire) as appender:
        await (await appender.append(subject, b"one"))
        await appender.put(subject, b"two")
    assert [record.data for record in await stored(stack, "EXEC", subject)] == [b"one", b"two"]


async def test_records_of_one_subject_keep_their_order(stack: Stack, wire: Wire) -> None:
    subject = stream_subject()
    async with Appender.running(wire) as appender:
        for number in range(500):
            appender.put(subject, b"%d" % number)
    found = [int(record.data) for record in await stored(stack, "EXEC", subject)]
    assert found == list(range(500))


async def test_what_is_un_acked_stays_within_the_window(wire: Wire) -> None:
    most = 0
    async with Appender.running(wire, window=64 * 1024) as appender:
        for _ in range(50):
            await appender.append(stream_subject(), bytes(8 * 1024))
            most = max(most, appender.unacked)
    assert 0 < most <= 64 * 1024


async def test_the_window_is_given_in_the_order_of_asking(wire: Wire) -> None:
    order: list[int] = []
    async with Appender.running(wire, window=20 * 1024) as appender:

        async def one(number: int) -> None:
            await appender.append(stream_subject(), bytes(16 * 1024))
            order.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(one(number))
    assert order == list(range(20))


async def test_a_cancelled_waiter_gives_its_place_back(wire: Wire) -> None:
    async with Appender.running(wire, window=20 * 1024) as appender:
        first = await appender.append(stream_subject(), bytes(16 * 1024))
        waiting = [asyncio.create_task(appender.append(stream_subject(), bytes(16 * 1024))) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await first
        await asyncio.gather(*waiting[1:])
    assert appender.unacked == 0


async def test_a_record_over_a_stream_limit_fails_and_holds_nothing_up(tmp_path: Path) -> None:
    limited = StreamConfig(
        name="LIMITED",
        subjects=["limited.>"],
        max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW,
        discard_new_per_subject=True,
    )
    async with (
        Broker.running(tmp_path) as broker,
        Wire.connect(broker.url, Credentials.new(Role.EDGE, node=NODE)) as wire,
        Appender.running(wire) as appender,
    ):
        await wire.jetstream.add_stream(limited)
        await appender.put("limited.a", b"1")
        refused = appender.put("limited.a", b"2")
        await appender.put("limited.b", b"1")
        with pytest.raises(LimitError):
            await refused


async def test_a_record_that_no_stream_takes_is_given_up_at_the_end(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.bus.nats.appender.FLUSH", 0.5)
    async with Appender.running(wire) as appender:
        never = appender.put(f"_INBOX.{NODE}.nowhere", b"x")
    with pytest.raises(BrokerDown):
        await never


@pytest.mark.kill
async def test_records_cross_broker_kills_and_fold_to_the_same_bytes(tmp_path: Path) -> None:
    sent: dict[str, hashlib._Hash] = defaultdict(hashlib.sha256)
    async with running_streams(tmp_path) as stack, stack.wire(NODE) as wire:
        async with Appender.running(wire) as appender, asyncio.TaskGroup() as group:
            names = [stream_subject() for _ in range(8)]
            for name in names:
                group.create_task(_stream(appender, name, sent[name]))
            group.create_task(_kill_twice(stack))
        assert stack.broker.restarts == 2
        for name in names:
            out, _, fold = folded(await stored(stack, "EXEC", name))
            assert hashlib.sha256(out).hexdigest() == sent[name].hexdigest()
            assert fold.end == b"{}"


async def _stream(appender: Appender, subject: str, digest: hashlib._Hash) -> None:
    offset = 0
    for number in range(300):
        data = os.urandom(4096)
        digest.update(data)
        await appender.append(subject, Frame(Kind.STDOUT, number, offset, 1, data).pack())
        offset += len(data)
        await asyncio.sleep(0.005)
    await appender.put(subject, Frame(Kind.EXIT, 300, offset, 1, b"{}").pack())


async def _kill_twice(stack: Stack) -> None:
    for _ in range(2):
        await asyncio.sleep(0.5)
        os.kill(stack.broker.pid, signal.SIGKILL)
