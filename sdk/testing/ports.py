"""Ports: bytes go to the sandbox that was named and to no other, and each side waits for the other."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import urllib.request

import pytest

from dsec.bus.errors import DsecError, NoSuchSandbox, PortClosed, SpecError
from dsec.sdk import Client, Sandbox
from dsec.sdk.exec import Exec
from dsec.sdk.spec_args import LimitArgs
from dsec.sdk.testing import pace

SANDBOXES = pace.fewer(40)
HTTP = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = sys.argv[2].encode()
        self.send_response(200 if self.path != "/no" else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer((sys.argv[3], int(sys.argv[1])), Handler).serve_forever()
"""
ECHO = """
import socket, sys, threading
def echo(one):
    while data := one.recv(1 << 16):
        one.sendall(data)
    one.shutdown(socket.SHUT_WR)
    one.close()
server = socket.create_server(("127.0.0.1", 9000))
while True:
    threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()
"""
SLEEPER = """
import socket, time
server = socket.create_server(("127.0.0.1", 9000))
one = server.accept()[0]
time.sleep(1.5)
total = 0
while data := one.recv(1 << 16):
    total += len(data)
one.sendall(str(total).encode())
one.close()
"""
RESET = """
import socket, struct
server = socket.create_server(("127.0.0.1", 9000))
while True:
    one = server.accept()[0]
    one.recv(1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()
"""


async def serve(sandbox: Sandbox, program: str, *argv: str, port: int = 9000) -> Exec:
    """A server inside that listens."""
    running = await sandbox.start(["python3", "-c", program, *argv])
    await sandbox.wait_port(port, timeout=pace.within(30))
    return running


async def got(url: str, path: str = "/") -> str:
    """What GET answers."""

    def ask() -> str:
        with urllib.request.urlopen(url + path, timeout=pace.within(20)) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(ask)


@pytest.mark.usefixtures("reachable")
class PortSuite:
    @pytest.fixture
    def reachable(self, abilities: frozenset[str]) -> None:
        """Only where ports can be reached."""
        if "connect" not in abilities:
            pytest.skip("its ports cannot be reached")

    async def test_each_of_many_sandboxes_answers_on_the_same_port_with_its_own_id(
        self, client: Client, backend: str, offered: frozenset[str]
    ) -> None:
        limits: LimitArgs = {"memory": 64 << 20} if "memory" in offered else {}

        async def one(number: int) -> None:
            async with client.sandbox(backend=backend, image="base", limits=limits) as mine:
                await mine.start(["python3", "-c", HTTP, "8080", mine.id, "0.0.0.0"])
                async with mine.port(8080) as url:
                    await mine.wait_port(8080, path="/", timeout=pace.within(60))
                    assert await got(url) == mine.id, number

        await asyncio.gather(*(one(number) for number in range(SANDBOXES)))

    async def test_a_probe_tells_when_a_server_is_ready_and_why_it_is_not(self, sandbox: Sandbox) -> None:
        with pytest.raises(PortClosed, match="8080"):
            await sandbox.wait_port(8080, timeout=0.3)
        waiting = asyncio.create_task(sandbox.wait_port(8080, path="/", timeout=pace.within(30)))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await sandbox.start(["python3", "-c", HTTP, "8080", "x", "127.0.0.1"])
        await waiting
        with pytest.raises(PortClosed, match="503"):
            await sandbox.wait_port(8080, path="/no", timeout=0.5)

    async def test_a_server_on_ipv6_only_is_reached(self, sandbox: Sandbox) -> None:
        program = HTTP.replace(
            "http.server.Threading",
            "http.server.ThreadingHTTPServer.address_family = 10\nhttp.server.Threading",
        )
        await sandbox.start(["python3", "-c", program, "8080", "six", "::1"])
        await sandbox.wait_port(8080, timeout=pace.within(30))
        assert await got(await sandbox.url(8080)) == "six"
        assert await sandbox.url(8080) == await sandbox.url(8080)

    async def test_bytes_come_back_as_they_went_over_several_connections(self, sandbox: Sandbox) -> None:
        await serve(sandbox, ECHO)
        size = 1 << pace.smaller(22)

        async def echoed(number: int) -> None:
            data = bytes([number]) + bytes(range(256)) * (size // 256)
            reader, writer = await sandbox.connect(9000)
            writer.write(data)
            writer.write_eof()
            assert hashlib.sha256(await reader.read()).digest() == hashlib.sha256(data).digest()
            writer.close()

        await asyncio.gather(*(echoed(number) for number in range(6)))

    async def test_one_half_may_end_before_the_other_and_a_slow_reader_makes_the_writer_wait(
        self, sandbox: Sandbox
    ) -> None:
        await serve(sandbox, SLEEPER.replace("one = server", "server.accept()[0].close()\none = server"))
        reader, writer = await sandbox.connect(9000)
        size = 1 << max(24, pace.smaller(25))
        began = asyncio.get_running_loop().time()
        writer.write(bytes(size))
        await writer.drain()
        assert asyncio.get_running_loop().time() - began > 0.8
        writer.write_eof()
        assert await reader.read() == str(size).encode()
        writer.close()

    async def test_a_reset_a_closed_port_and_the_end_of_the_sandbox_are_told(
        self, client: Client, backend: str
    ) -> None:
        async with client.sandbox(backend=backend, image="base") as sandbox:
            with pytest.raises(PortClosed):
                await sandbox.connect(9000)
            async with sandbox.port(9000) as url:
                with pytest.raises(ConnectionError):
                    await _through(url)
            resetting = await serve(sandbox, RESET)
            async with sandbox.port(9000) as url:
                with pytest.raises(ConnectionError):
                    await _through(url)
            reader, writer = await sandbox.connect(9000)
            writer.write(b"x")
            with pytest.raises(ConnectionError):
                await reader.read()
            await resetting.kill()
            await serve(sandbox, ECHO, port=9000)
            reader, writer = await sandbox.connect(9000)
            await sandbox.destroy()
            with pytest.raises((DsecError, ConnectionError)):
                await reader.read()
            with pytest.raises(NoSuchSandbox):
                await sandbox.connect(9000)

    async def test_only_the_inside_is_reached_and_only_real_ports(self, sandbox: Sandbox) -> None:
        with socket.create_server(("127.0.0.1", 0)) as on_the_host, pytest.raises(PortClosed):
            await sandbox.connect(on_the_host.getsockname()[1])
        for port in (0, 65536, -1):
            with pytest.raises(SpecError):
                await sandbox.connect(port)

    async def test_connections_end_with_a_stop_and_are_made_anew_after_a_start(
        self, sandbox: Sandbox
    ) -> None:
        await serve(sandbox, ECHO)
        reader, _ = await sandbox.connect(9000)
        await sandbox.stop()
        with pytest.raises((DsecError, ConnectionError)):
            await reader.read()
        await sandbox.start()
        await serve(sandbox, ECHO)
        reader, writer = await sandbox.connect(9000)
        writer.write(b"again\n")
        assert await reader.readline() == b"again\n"
        writer.close()


async def _through(url: str) -> bytes:
    """What a forwarded connection gives for a byte. Raises ConnectionError when it is broken off."""
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"x")
        async with asyncio.timeout(pace.within(20)):
            return await reader.readexactly(1)
    finally:
        writer.close()
