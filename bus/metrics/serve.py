"""`/metrics` for Prometheus and `/healthz`, on a port of this process: `--metrics ADDRESS:PORT`.

Answered by threads, so that a slow reader holds nothing up, out of a snapshot made in the event loop: a loop
that does not run is told as that, instead of hanging the scrape. Read only, plain HTTP, no authentication: an
address other than 127.0.0.1 is for networks in which everybody may know project names and load.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import ipaddress
import logging
import socket
import socketserver
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeVar

import orjson

from dsec.bus.errors import AlreadyRunning, InfraError, MissingTool, SpecError
from dsec.bus.metrics import names, parts
from dsec.bus.metrics.collect import Snapshot, snapshot
from dsec.bus.micro import package_version
from dsec.bus.workload import workload_of

log = logging.getLogger(__name__)
ValueT = TypeVar("ValueT")

LOOP_WITHIN: Final = 3.0
"""Seconds that the event loop has for a snapshot."""
IDLE: Final = 10.0
"""Seconds that a client may take to send its request or to read the answer."""
Told = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""


def address(text: str) -> tuple[str, int]:
    """`9464`, `127.0.0.1:9464`, `[::1]:9464` as host and port; port 0 is a free one. Raises SpecError."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    try:
        ip, number = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host), int(port)
    except ValueError:
        raise SpecError(f"--metrics takes PORT or IP:PORT, not {text!r}", field="metrics") from None
    if not 0 <= number < 65536:
        raise SpecError(f"--metrics: there is no port {number}", field="metrics")
    return str(ip), number


@dataclass(slots=True)
class Exposed:
    """What is served at `url`; `state` is told by `/healthz`, which is well only while `serving`."""

    url: str = ""
    state: str = "starting"
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """The process does its work while the block runs."""
        self.state = "serving"
        try:
            yield
        finally:
            self.state = "stopping"

    def health(self) -> Told:
        """200 when all is well, else 503. Raises InfraError when the event loop does not run."""
        told = self._in_loop(_health)
        well = self.state == "serving" and all(part["connected"] and not part["why"] for part in told)
        status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "application/json", orjson.dumps({"ok": well, "state": self.state, "parts": told})

    def snapshot(self) -> Snapshot:
        """Everything, with what is told of the process itself. Raises InfraError."""
        asked = time.perf_counter()

        async def taken() -> Snapshot:
            delay = time.perf_counter() - asked
            found = await snapshot(parts.running())
            found.add(names.LOOP_DELAY, (), delay)
            found.add(names.BUILD, (package_version(),), 1)
            return found

        return self._in_loop(taken)

    def _in_loop(self, ask: Callable[[], Coroutine[Any, Any, ValueT]]) -> ValueT:
        work = ask()
        try:
            answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:  # it is closed
            work.close()
            raise InfraError("the event loop has ended") from error
        try:
            return answer.result(LOOP_WITHIN)
        except TimeoutError:
            answer.cancel()
            raise InfraError(f"the event loop did not answer within {LOOP_WITHIN:g} s") from None


async def _health() -> list[dict[str, Any]]:
    return [
        {
            "part": part.kind,
            "node": part.node,
            "connected": part.bus.connected,
            "why": [why for check in workload_of(part.bus).figures.checks if (why := check())],
        }
        for part in parts.running()
    ]


@contextlib.asynccontextmanager
async def exposed(where: str) -> AsyncIterator[Exposed]:
    """Serve at `where` (see `address`) while the block runs; nowhere when it is empty.

    Raises AlreadyRunning (the port is taken), SpecError, MissingTool (prometheus-client).
    """
    what = Exposed()
    if not where:
        yield what
        return
    try:
        text = importlib.import_module("dsec.bus.metrics.text")
    except ImportError as error:
        raise MissingTool.during(
            "--metrics needs prometheus-client: pip install opendsec[node]", error
        ) from error
    pages: dict[str, Callable[[], Told]] = {
        "/metrics": lambda: (HTTPStatus.OK, text.CONTENT_TYPE, text.render(what.snapshot())),
        "/healthz": what.health,
    }
    server = _listening(where, pages)
    what.url = _url(server)
    thread = threading.Thread(target=server.serve_forever, name="metrics", kwargs={"poll_interval": 0.1})
    thread.start()
    log.info("metrics at %s/metrics", what.url)
    try:
        yield what
    finally:
        await asyncio.shield(asyncio.to_thread(_end, server, thread))


def _end(server: ThreadingHTTPServer, thread: threading.Thread) -> None:
    server.shutdown()
    thread.join()
    server.server_close()


def _listening(where: str, pages: dict[str, Callable[[], Told]]) -> ThreadingHTTPServer:
    host, port = address(where)

    class Pages(_Pages):
        answers = pages

    kind = _Server6 if ":" in host else _Server
    try:
        return kind((host, port), Pages)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AlreadyRunning(
                f"--metrics {where}: another process listens there; choose another"
            ) from error
        raise SpecError.during(f"--metrics {where}", error) from error


def _url(server: ThreadingHTTPServer) -> str:
    host, port = server.server_address[:2]
    name = str(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    """A client that reads slowly does not hold up the end of the process."""

    def server_bind(self) -> None:
        """Without http.server's look-up of the host's name, which may ask a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no event."""
        log.debug("a reader of the metrics went away", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Pages(BaseHTTPRequestHandler):
    answers: dict[str, Callable[[], Told]]
    timeout = IDLE

    def do_GET(self) -> None:
        """A page, 404 for any other path, 503 with the reason when the event loop does not answer."""
        page = self.answers.get(self.path.partition("?")[0])
        if page is None:
            self._tell(HTTPStatus.NOT_FOUND, "text/plain", b"/metrics or /healthz\n")
            return
        try:
            told = page()
        except InfraError as error:
            told = HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error.message}\n".encode()
        self._tell(*told)

    def _tell(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """A scrape is no event."""
