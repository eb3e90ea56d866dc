"""What the edge itself answers for connections to ports, and what a stopped sandbox is promised."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from dsec.bus.errors import DsecError, LimitError, NoSuchConnection, SpecError
from dsec.plugins.edge import ports
from dsec.plugins.edge.connection import Connection
from dsec.sdk import Sandbox
from dsec.sdk.link import new_operation
from dsec.sdk.testing.ports import ECHO, serve
from tests.edge.support import Site, eventually, stored


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Connection, socket.socket]]:
    """A connection and the far end of it."""
    near, far = socket.socketpair()
    for one in (near, far):
        one.setblocking(False)
    connection = Connection(near)
    yield connection, far
    connection.close()
    far.close()


def soon(seconds: float = 0.2) -> float:
    return time.monotonic() + seconds


async def test_a_repeated_send_is_taken_once_and_a_gap_is_refused(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, far = ends
    assert await connection.send(0, b"abc", eof=False, until=soon()) == 3
    assert await connection.send(0, b"abcde", eof=False, until=soon()) == 5
    assert await connection.send(2, b"cd", eof=False, until=soon()) == 5
    with pytest.raises(SpecError):
        await connection.send(6, b"g", eof=False, until=soon())
    assert await connection.send(5, b"", eof=True, until=soon()) == 5
    assert (far.recv(100), far.recv(100)) == (b"abcde", b"")


async def test_what_was_received_is_kept_until_it_is_asked_past(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, far = ends
    far.send(b"hello")
    for _ in range(2):
        assert (await connection.recv(0, soon()))[1] == b"hello"
    far.send(b" world")
    assert (await connection.recv(2, soon()))[1] == b"llo"
    assert (await connection.recv(5, soon()))[1] == b" world"
    for wrong in (4, 12):
        with pytest.raises(SpecError):
            await connection.recv(wrong, soon())
    told, data = await connection.recv(11, soon(0.05))
    assert (told.eof, told.reset, data) == (False, False, b"")
    far.close()
    for _ in range(2):
        assert (await connection.recv(11, soon()))[0].eof


async def test_a_socket_without_room_takes_a_part_and_who_waits_hears_of_the_end(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, _ = ends
    reached = await connection.send(0, bytes(8 << 20), eof=False, until=soon())
    assert 0 < reached < 8 << 20
    sending = asyncio.create_task(connection.send(reached, bytes(1 << 20), eof=False, until=soon(20)))
    receiving = asyncio.create_task(connection.recv(0, soon(20)))
    await asyncio.sleep(0.05)
    connection.close()
    for task in (sending, receiving):
        with pytest.raises(NoSuchConnection):
            await asyncio.wait_for(task, 2)


@pytest.mark.node
async def test_connections_are_bounded_and_unused_ones_are_closed(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "MOST", 3)
    monkeypatch.setattr(ports, "LEASE", 1.0)
    await serve(sandbox, ECHO)
    link, open_ = sandbox._link, sandbox._link.subject("port", "open", sandbox.id)
    for _ in range(3):
        await link.call(open_, {"port": 9000}, op=new_operation())
    with pytest.raises(LimitError) as caught:
        await sandbox.connect(9000)
    assert caught.value.field == "connections"

    async def closed() -> bool:
        _, writer = await sandbox.connect(9000)
        writer.close()
        return True

    await eventually(closed)


@pytest.mark.node
async def test_opening_is_audited_with_the_port_and_a_repeat_opens_nothing(
    site: Site, sandbox: Sandbox
) -> None:
    await serve(sandbox, ECHO)
    link, op = sandbox._link, new_operation()
    open_ = link.subject("port", "open", sandbox.id)
    answers = [await link.call(open_, {"port": 9000}, op=op) for _ in range(2)]
    assert answers[0] == answers[1] == {"connection": op}

    async def audited() -> bool:
        entries = await stored(site.stack, "AUDIT", "audit.edge.open.>")
        return len([entry for entry in entries if f"{sandbox.id}:9000".encode() in entry.data]) == 1

    await eventually(audited)


@pytest.mark.node
async def test_a_connection_does_not_survive_the_edge_and_is_told_so(site: Site) -> None:
    async with site.client() as client:
        async with site.edge():
            sandbox = await client.create(backend="container", image="base")
            await serve(sandbox, ECHO)
            reader, writer = await sandbox.connect(9000)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        async with site.edge(drain=True):
            with pytest.raises((DsecError, ConnectionError)):
                await asyncio.wait_for(reader.readexactly(1), 40)
            fresh, again = await sandbox.connect(9000)
            again.write(b"y")
            assert await fresh.readexactly(1) == b"y"
            for one in (writer, again):
                one.close()
