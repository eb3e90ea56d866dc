"""Three real nats-servers on this machine, as `dsec broker config` has them, killed and started at will."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from dsec.bus.nats.broker import BrokerAuth, binary
from dsec.bus.nats.cluster import Cluster, Server

HOST = "127.0.0.1"
STORE = 8 << 30


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all held until all are found."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


@dataclass(slots=True)
class Trio:
    """Made by `running`. Names of servers are `nats-1`…"""

    directory: Path
    cluster: Cluster
    processes: dict[str, Process] = field(default_factory=dict)
    inside: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Words before the command of a server: where it runs."""

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.cluster.members]

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def url(self) -> str:
        return str(self.cluster.servers(self.ca))

    def url_of(self, name: str) -> str:
        """Of one server alone."""
        (member,) = (one for one in self.cluster.members if one.name == name)
        return f"tls://{member.host}:{member.port}?ca={self.ca}"

    async def start(self, name: str) -> None:
        """Start one; it dies with us."""
        setpriv = shutil.which("setpriv")
        assert setpriv
        with (self.directory / name / "server.log").open("ab") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                *self.inside.get(name, ()),
                *(setpriv, "--pdeathsig", "KILL", "--", str(binary())),
                *("-c", str(self.directory / name / "nats.json")),
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    async def end(self, name: str, number: int = signal.SIGKILL) -> None:
        """`kill -9`, or another signal; returns when it has ended."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        await process.wait()


@contextlib.asynccontextmanager
async def running(directory: Path, auth: BrokerAuth, *, size: int = 3) -> AsyncIterator[Trio]:
    """`size` servers while the block runs; they may not have found each other yet."""
    ports = iter(free_ports(2 * size))
    members = tuple(
        Server(f"nats-{number}", HOST, next(ports), next(ports), listen=HOST) for number in range(1, size + 1)
    )
    trio = Trio(directory, Cluster(members, auth, file_bytes=STORE))
    await asyncio.to_thread(trio.cluster.write, directory)
    try:
        for name in trio.names:
            await trio.start(name)
        yield trio
    finally:
        for name in list(trio.processes):
            await trio.end(name)
