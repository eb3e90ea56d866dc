"""What only a broker can show: loss of the connection, refusals, a clean end."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from nats.aio.client import Srv

from dsec.bus.errors import BrokerDown, DsecError, TooLarge
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.connection import Socket
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.headers import parse_headers
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Received
from tests.wire.support import answered_again, until
from tests.wire.test_contract import _answering

CORE = Credentials.new(Role.CORE)


@pytest.mark.kill
async def test_requests_resume_within_seconds_after_the_broker_was_killed(tmp_path: Path) -> None:
    async with (
        Broker.running(tmp_path) as broker,
        Wire.connect(broker.url, CORE) as server,
        Wire.connect(broker.url, Credentials.new(Role.JOURNAL)) as client,
    ):
        lost, back = asyncio.Event(), asyncio.Event()
        client.on_disconnected(lost.set)
        client.on_connected(back.set)
        await server.subscribe("echo.x", _answering(server))
        for round_ in range(1, 3):
            url = broker.url
            os.kill(broker.pid, signal.SIGKILL)
            await answered_again(client, "echo.x", within=5)
            assert (broker.restarts, broker.url) == (round_, url)
        assert lost.is_set()
        assert back.is_set()


@pytest.mark.kill
async def test_a_request_under_way_fails_when_the_broker_dies_instead_of_waiting(tmp_path: Path) -> None:
    async with Broker.running(tmp_path) as broker, Wire.connect(broker.url, CORE) as wire:
        await wire.subscribe("silent.x", lambda _: None)
        request = asyncio.create_task(wire.request("silent.x", b"", timeout=60))
        await asyncio.sleep(0.05)
        os.kill(broker.pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            with pytest.raises(BrokerDown, match="may be lost"):
                await request


@pytest.mark.kill
async def test_nothing_that_was_published_while_disconnected_is_delivered_later(tmp_path: Path) -> None:
    async with Broker.running(tmp_path) as broker, Wire.connect(broker.url, CORE) as wire:
        got: list[Received] = []
        await wire.subscribe("late.x", got.append)
        os.kill(broker.pid, signal.SIGKILL)
        refused = 0
        while not refused:
            try:
                await wire.publish("late.x", b"lost with the broker, or refused")
                await asyncio.sleep(0.001)
            except BrokerDown:
                refused += 1
        got.clear()
        async with asyncio.timeout(5):
            while not wire.connected:
                with pytest.raises(BrokerDown):
                    await wire.publish("late.x", b"never")
                await asyncio.sleep(0.01)
        await wire.subscribe("echo.x", _answering(wire))
        await wire.request("echo.x", b"", timeout=2)
        assert got == []


def test_on_uvloop_too_a_socket_that_closes_under_a_write_is_a_connection_that_comes_back(
    tmp_path: Path,
) -> None:
    uvloop = pytest.importorskip("uvloop")
    troubles: list[str] = []

    async def cut_and_go_on() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: troubles.append(str(what)))
        async with Broker.running(tmp_path) as broker, Wire.connect(broker.url, CORE) as wire:
            for _ in range(3):
                await cut_under_a_write(wire)

    def on_uvloop() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(cut_and_go_on())

    with ThreadPoolExecutor(1) as thread:
        thread.submit(on_uvloop).result()
    assert not troubles


async def cut_under_a_write(wire: Wire) -> None:
    connection = wire._connection
    transport, stream = connection._transport, connection._stream()
    assert isinstance(transport, Socket)
    assert stream is not None
    stream.transport.abort()
    with contextlib.suppress(DsecError):
        await wire.publish("lost", b"x")
    with pytest.raises(ConnectionResetError):
        transport.write(b"PING")
    await until(lambda: wire.connected and connection._stream() is not stream, within=10)
    await connection.roundtrip()


@pytest.mark.kill
@pytest.mark.slow
async def test_a_broker_that_hangs_is_noticed(tmp_path: Path) -> None:
    async with Broker.running(tmp_path) as broker, Wire.connect(broker.url, CORE) as wire:
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            await until(lambda: not wire.connected, within=25)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        await until(lambda: wire.connected, within=10)


async def test_an_absent_broker_is_named_within_the_timeout() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{free.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(BrokerDown, match=url):
            async with Wire.connect(url, CORE, timeout=0.5):
                pass
        assert time.monotonic() - started < 8


async def test_something_else_on_the_port_is_not_a_broker() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BrokerDown, match="INFO"):
            async with Wire.connect(f"nats://127.0.0.1:{port}", CORE, timeout=0.5):
                pass


async def test_headers_count_towards_the_size_of_a_message(broker: Broker) -> None:
    async with Wire.connect(broker.url, CORE) as wire:
        with pytest.raises(TooLarge):
            await wire.publish("x.y", bytes(wire.max_payload - 10), headers={"Name": "value"})
        await wire.publish("x.y", bytes(wire.max_payload - 40), headers={"Name": "value"})
        with pytest.raises(DsecError):
            await wire.request("nobody.there", b"", timeout=1)
        assert wire.connected


async def test_a_slow_broker_makes_publishers_wait_with_little_in_memory(broker: Broker) -> None:
    async with Wire.connect(broker.url, CORE) as wire:
        for _ in range(400):
            await wire.publish("flood.x", bytes(64 * 1024))
            stream = wire._connection._stream()
            assert stream is not None
            assert stream.transport.get_write_buffer_size() <= 640 * 1024


async def test_jetstream_serves_streams_and_buckets(tmp_path: Path) -> None:
    async with Broker.running(tmp_path) as broker, Wire.connect(broker.url, CORE) as wire:
        bucket = await wire.jetstream.create_key_value(bucket="b")
        await bucket.put("k", b"v")
        assert (await bucket.get("k")).value == b"v"


async def test_a_cancelled_round_trip_leaves_the_connection_alive(broker: Broker) -> None:
    async with Wire.connect(broker.url, CORE) as wire:
        await wire.subscribe("echo3.x", _answering(wire))
        for _ in range(10):
            task = asyncio.create_task(wire.subscribe("other.x", lambda _: None))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert (await wire.request("echo3.x", b"alive", timeout=2)).data == b"alive"


async def test_a_cancellation_that_comes_with_the_answer_of_a_round_trip_is_not_lost(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Wire.connect(broker.url, CORE) as wire:
        connection = wire._connection
        judged = connection._process_pong

        async def judged_and_cancelled() -> None:
            await judged()
            trip.cancel()

        monkeypatch.setattr(connection, "_process_pong", judged_and_cancelled)
        trip = asyncio.create_task(wire.round_trip())
        await asyncio.wait([trip])
        assert trip.cancelled()


async def test_closing_leaves_no_task_and_fails_what_waits(broker: Broker) -> None:
    before = asyncio.all_tasks()
    async with Wire.connect(broker.url, CORE) as wire:
        await wire.subscribe("silent2.x", lambda _: None)
        request = asyncio.create_task(wire.request("silent2.x", b"", timeout=60))
        await asyncio.sleep(0.02)
    with pytest.raises(BrokerDown):
        await request
    assert asyncio.all_tasks() <= before
    with pytest.raises(BrokerDown):
        await wire.publish("x.y", b"")


async def test_a_closed_client_does_not_reconnect_though_its_cancellation_is_lost(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, reached = asyncio.all_tasks(), asyncio.Event()
    async with Wire.connect(broker.url, CORE) as wire:
        connection = wire._connection
        connect = connection._connect_to_server

        async def connected(server: Srv) -> None:
            await connect(server)
            reached.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

        monkeypatch.setattr(connection, "_connect_to_server", connected)
        stream = connection._stream()
        assert stream is not None
        stream.transport.abort()
        await asyncio.wait_for(reached.wait(), 10)
    assert not wire.connected
    assert asyncio.all_tasks() <= before


def test_a_status_line_and_fields_are_read_from_a_header_block() -> None:
    assert parse_headers(b"NATS/1.0 503\r\n\r\n") == {"Status": "503", "Description": ""}
    assert parse_headers(b"NATS/1.0 404 Message Not Found\r\nA: b\r\n\r\n") == {
        "Status": "404",
        "Description": "Message Not Found",
        "A": "b",
    }
    assert parse_headers(b"NATS/1.0\r\nNats-Sequence: 7\r\n\r\n") == {"Nats-Sequence": "7"}
