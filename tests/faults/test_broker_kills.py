"""The broker killed, frozen or down in the middle of calls: each succeeds after all, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from dsec.bus.errors import BrokerDown
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.sdk import Client
from tests.faults import support
from tests.faults.support import Halves

pytestmark = [pytest.mark.node, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(240)]
MIB = 1 << 20
MOMENTS = (0.01, 0.08)
"""Seconds from a call's begin to the kill."""
NUMBERS = b"".join(b"%d\n" % number for number in range(1, 1_000_001))


async def test_a_kill_in_every_kind_of_call_loses_and_doubles_nothing(
    halves: Halves, connected: Client
) -> None:
    data = bytes(range(256)) * (10 * MIB // 256)
    sandboxes = [await connected.create(image="base") for _ in range(2)]
    for moment in MOMENTS:
        name = f"broker-{int(moment * 1000)}"
        doomed = await connected.create(image="base")
        stream = await sandboxes[0].start("seq 1000000")
        under_way = asyncio.gather(
            connected.create(image="base", key=name),
            sandboxes[0].run(f"echo x >> /{name}; cat /{name}", key=name),
            stream.wait(),
            sandboxes[0].files.write("/data", data),
            sandboxes[1].pack(name),
            doomed.destroy(),
        )
        await asyncio.sleep(moment)
        os.kill(halves.broker_pid, signal.SIGKILL)
        created, ran, streamed, *_ = await asyncio.wait_for(under_way, 60)
        assert (await connected.create(image="base", key=name)).id == created.id
        assert ran.stdout == "x\n"
        assert streamed.stdout_bytes == NUMBERS
        assert await sandboxes[0].files.read("/data") == data
        assert halves.leftovers(doomed.id) == []


async def test_a_frozen_broker_fails_calls_typed_and_they_succeed_when_it_goes_on(
    halves: Halves, connected: Client
) -> None:
    sandbox = await connected.create(image="base")
    counting = await sandbox.start("for i in $(seq 300); do echo $i; sleep 0.01; done")
    broker = halves.broker_pid
    os.kill(broker, signal.SIGSTOP)
    try:
        calls = asyncio.gather(sandbox.run("echo on"), connected.create(image="base"), sandbox.stat())
        await asyncio.sleep(6)
    finally:
        os.kill(broker, signal.SIGCONT)
    ran, *_ = await asyncio.wait_for(calls, 30)
    assert ran.stdout == "on\n"
    assert (await counting.wait()).stdout == "".join(f"{number}\n" for number in range(1, 301))


async def test_a_client_of_a_dead_broker_is_told_in_time(halves: Halves) -> None:
    who = Credentials.load(halves.control.credentials)
    began = time.monotonic()
    with pytest.raises(BrokerDown, match="no broker at nats:"):
        async with Wire.connect("nats://127.0.0.1:1", who, timeout=1.0):
            pass
    assert time.monotonic() - began < 10


async def test_a_subscription_caught_in_the_brokers_death_fails_at_once_and_does_not_come_back(
    halves: Halves,
) -> None:
    who = Credentials.load(halves.control.credentials)
    got: list[bytes] = []
    async with Wire.connect(halves.control.url, who) as wire:
        broker, subject = halves.broker_pid, f"{wire.inbox}.late"
        await support.frozen(broker)  # it takes the subscription no more
        subscribing = asyncio.create_task(wire.subscribe(subject, lambda message: got.append(message.data)))
        await asyncio.sleep(0.2)
        os.kill(broker, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(BrokerDown):
            await subscribing
        assert time.monotonic() - began < 8
        async with asyncio.timeout(20):
            while not wire.connected:  # noqa: ASYNC110 - a bus tells its state, not its changes
                await asyncio.sleep(0.05)
        assert len(wire._connection._subs) == 1  # its answers


async def test_commands_run_on_while_there_is_no_broker(halves: Halves, connected: Client) -> None:
    sandbox = await connected.create(image="base")
    counting = await sandbox.start("for i in $(seq 500); do echo $i; sleep 0.01; done; seq 200000")
    await halves.control.kill()
    await asyncio.sleep(6)
    await halves.start_control()
    result = await asyncio.wait_for(counting.wait(), 40)
    expected = [*range(1, 501), *range(1, 200_001)]
    assert result.stdout_bytes == b"".join(b"%d\n" % number for number in expected)


async def test_creates_are_answered_once_over_a_kill_of_the_control_plane(
    halves: Halves, connected: Client
) -> None:
    creates = asyncio.gather(*(connected.create(image="base", key=f"cp-{number}") for number in range(12)))
    await asyncio.sleep(0.15)
    await halves.control.kill()
    await halves.start_control()
    made = [sandbox.id for sandbox in await asyncio.wait_for(creates, 60)]
    again = [(await connected.create(image="base", key=f"cp-{number}")).id for number in range(12)]
    assert made == again
    assert len({record.sandbox async for record in connected.list()} & set(made)) == 12
