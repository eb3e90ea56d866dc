"""The configuration of a cluster of nats-servers, and what a running one tells of itself.

    cluster = Cluster((Server("nats-1", "nats-1"), Server("nats-2", "nats-2"), …), auth)
    cluster.write(directory)             # directory/nats-1/{nats.json,server.pem,server.key,ca.pem}, …
    Servers.parse(str(cluster.servers(directory / "ca.pem")))

One place for `dsec broker config`, for compose/ and for the tests. Clients and routes speak TLS with one CA
of the cluster's own, routes in both directions (a server without a certificate of this CA is none of us). Who
may connect is iam's word on every server, as on a single one (`broker.BrokerAuth`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from dsec.bus import ids
from dsec.bus.errors import BrokerDown, SpecError
from dsec.bus.files import write_private
from dsec.bus.nats import servers
from dsec.bus.nats.broker import BrokerAuth, settings
from dsec.bus.nats.certificates import make_authority, make_server
from dsec.bus.transport import Bus, Received

NAME: Final = "dsec"
STORE_BYTES: Final = 64 << 30
MOST_REPLICAS: Final = 3
"""Copies of a stream: one server may be lost. More would make every write dearer and save nothing else."""
TLS_TIMEOUT: Final = 5.0
ROUTE_PING: Final = "3s"
"""A server that is cut off is out of the others' routes after three of these; until then reads go to it."""
SURVEY: Final = "$SYS.REQ.SERVER.PING.JSZ"
SURVEY_WITHIN: Final = 2.0


@dataclass(frozen=True, slots=True)
class Server:
    """`host`: name or address by which clients and the other servers reach it. `monitor`: port of its HTTP
    monitoring, on its loopback only; 0: none.
    """

    name: str
    host: str
    port: int = servers.PORT
    route_port: int = 6222
    listen: str = "0.0.0.0"  # noqa: S104 - on a machine or in a container of its own
    monitor: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """`home`: where each server sees its own directory; None: where `write` puts it."""

    members: tuple[Server, ...]
    auth: BrokerAuth
    home: Path | None = None
    file_bytes: int = STORE_BYTES

    def __post_init__(self) -> None:
        names = {member.name for member in self.members}
        if not self.members or len(names) != len(self.members):
            raise SpecError("a cluster is servers of different names, at least one", field="server")

    def servers(self, ca: Path) -> servers.Servers:
        """What clients connect to."""
        return servers.of(((member.host, member.port) for member in self.members), ca)

    def config(self, member: Server, home: Path) -> dict[str, Any]:
        """nats-server's configuration of one member that sees its directory at `home`."""
        return {
            **settings(member.name, home, file_bytes=self.file_bytes),
            "host": member.listen,
            "port": member.port,
            "client_advertise": f"{member.host}:{member.port}",
            "tls": _tls(home),
            **({"http": f"127.0.0.1:{member.monitor}"} if member.monitor else {}),
            **({"cluster": self._routes(member, home)} if len(self.members) > 1 else {}),
            **self.auth.config(),
        }

    def _routes(self, member: Server, home: Path) -> dict[str, Any]:
        return {
            "name": NAME,
            "host": member.listen,
            "port": member.route_port,
            "advertise": f"{member.host}:{member.route_port}",
            "routes": [f"nats://{one.host}:{one.route_port}" for one in self.members if one is not member],
            "tls": _tls(home) | {"verify": True},
            "ping_interval": ROUTE_PING,
        }

    def write(self, directory: Path) -> None:
        """One directory per server, with new certificates of the CA that is there or is made.

        All mode 0600 but the certificates. Raises MissingTool, InfraError, DiskFull, OSError.
        """
        authority = make_authority(directory, f"{NAME} broker CA")
        for member in self.members:
            own = directory / member.name
            make_server(own, authority, _names(member))
            (own / "ca.pem").write_bytes(authority[0].read_bytes())
            config = self.config(member, self.home or own)
            write_private(own / "nats.json", json.dumps(config, indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class Survey:
    """`size`: servers that store streams, away or not. `storage`: bytes that the smallest one gives them."""

    size: int
    storage: int

    @property
    def replicas(self) -> int:
        """Copies of each stream and bucket: the one place that decides it."""
        return min(self.size, MOST_REPLICAS)


async def survey(bus: Bus, *, listed: int = 1, within: float = SURVEY_WITHIN) -> Survey:
    """What the servers tell iam, whose connection `bus` is; there are `listed` at least, though some that
    were never started may not be known to the others.

    Raises BrokerDown when none tells, or they have no leader (yet): ask again.
    """
    answers: list[dict[str, Any]] = []
    every = asyncio.Event()

    def heard(message: Received) -> None:
        told = orjson.loads(message.data).get("data") or {}
        if told.get("config", {}).get("max_storage"):  # a server without JetStream stores nothing
            answers.append(told)
            if len(answers) >= max(listed, _size(answers)):
                every.set()

    inbox = f"{bus.inbox}.survey-{ids.tail(8)}"
    subscription = await bus.subscribe(inbox, heard)
    try:
        await bus.publish(SURVEY, b"", inbox)
        async with asyncio.timeout(within):
            await every.wait()
    except TimeoutError:
        if not answers:
            raise BrokerDown("no server of the broker told of its streams") from None
    finally:
        await subscription.unsubscribe()
    if not all("leader" in one.get("meta_cluster", {"leader": ""}) for one in answers):
        raise BrokerDown("the broker's cluster has no leader: are most of its servers there?")
    return Survey(max(listed, _size(answers)), min(int(one["config"]["max_storage"]) for one in answers))


def _size(answers: Sequence[dict[str, Any]]) -> int:
    """1 for a server that stands alone: it has no meta group."""
    return max(int((one.get("meta_cluster") or {}).get("cluster_size", 1)) for one in answers)


def _tls(home: Path) -> dict[str, Any]:
    files = {"cert_file": "server.pem", "key_file": "server.key", "ca_file": "ca.pem"}
    return {key: str(home / name) for key, name in files.items()} | {"timeout": TLS_TIMEOUT}


def _names(member: Server) -> list[str]:
    """Loopback, too, for whoever asks from the server's own machine."""
    return list(dict.fromkeys((member.host, "localhost", "127.0.0.1")))
