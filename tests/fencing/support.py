"""Nodes that are nothing but a connection: they write records and tell heartbeats when told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from dsec.bus import subjects
from dsec.bus.handlers import decode
from dsec.bus.messages import Heartbeat, Record
from dsec.bus.nats.appender import Appender
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.directget import DirectGet
from dsec.bus.nats.wire import Wire
from dsec.bus.nodes import NodeEntry, Nodes
from dsec.bus.registrar import STREAM, Registrar, subject_of
from dsec.plugins.iam import Iam
from tests.control.cluster import Cluster, now_ms, record


class Quiet:
    """A node with its rights."""

    def __init__(self, wire: Wire, node: str, registrar: Registrar, reader: DirectGet) -> None:
        self.wire, self.node, self.registrar, self.reader = wire, node, registrar, reader
        self.nodes = Nodes(wire)
        self.epoch = 1
        self.offset = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, cluster: Cluster, node: str) -> AsyncIterator[Quiet]:
        if not (cluster.home.credentials / f"{node}.json").exists():
            Iam.create_node(cluster.home, node)
        who = Credentials.load(cluster.home.credentials / f"{node}.json")
        async with (
            Wire.connect(cluster.url, who) as wire,
            Appender.running(wire) as appender,
            DirectGet.running(wire) as reader,
            Registrar.running(appender, reader) as registrar,
        ):
            yield cls(wire, node, registrar, reader)

    @contextlib.asynccontextmanager
    async def beating(self, every: float = 0.1) -> AsyncIterator[None]:
        """Heartbeats while the block runs."""

        async def beat() -> None:
            while True:
                await self.beat()
                await asyncio.sleep(every)

        task = asyncio.create_task(beat())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def beat(self) -> None:
        body = {
            "node": self.node,
            "epoch": self.epoch,
            "time": now_ms() + self.offset,
            "backends": {"container": []},
            "cpu": 8,
            "memory": 64 << 30,
            "cpu_used": 0,
            "memory_used": 0,
            "sandboxes": 0,
        }
        heartbeat = Heartbeat.model_validate(body)
        await self.wire.publish(subjects.node_heartbeat(self.node), heartbeat.model_dump_json().encode())

    async def held(self, sandbox: Record) -> Record | None:
        """The record that the registry has, once nothing is on the way."""
        while self.registrar.busy:  # noqa: ASYNC110 - it tells its state only
            await asyncio.sleep(0.01)
        stored = await self.reader.last(STREAM, subject_of(sandbox))
        return None if stored is None or not stored.data else decode(Record, stored.data)

    async def entry(self) -> NodeEntry:
        kept = await self.nodes.get(self.node, timeout=2)
        assert kept is not None
        return kept.entry


def of_node(node: str, name: str, *, epoch: int = 1) -> Record:
    """A running sandbox `s-<node>-<name>`."""
    return record(f"s-{node[2:]}-{name}").model_copy(update={"epoch": epoch})
