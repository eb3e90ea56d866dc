"""A control plane on a real broker, with nodes that only keep books, for tests of core and journal."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from dsec.bus import ids, subjects
from dsec.bus.core.service import Core
from dsec.bus.errors import DsecError
from dsec.bus.handlers import decode, failed, ok, result, serving_internal
from dsec.bus.home import Home
from dsec.bus.host import Context
from dsec.bus.messages import CreateSandbox, Heartbeat, NodeCreate, Record, State, Veto
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.directget import DirectGet, Stored
from dsec.bus.nats.wire import Wire
from dsec.bus.registry import ensure
from dsec.bus.spec import Limits, Spec
from dsec.bus.transport import Received
from dsec.plugins.iam import Iam
from dsec.plugins.scheduler import Scheduler

PROJECT, PRINCIPAL = "p-tests", "u-tester"
GIB = 1 << 30


def now_ms(seconds: float = 0) -> int:
    return int((time.time() + seconds) * 1000)


def record(sandbox: str, *, project: str = PROJECT, created: int = 0, state: State = State.RUNNING) -> Record:
    return Record(
        sandbox=sandbox,
        project=project,
        principal=PRINCIPAL,
        node=ids.node_of(sandbox),
        epoch=1,
        state=state,
        spec=Spec.model_validate({"image": "base"}),
        applied=Limits(),
        created=created,
        expires=created + 1000,
    )


class BookNode:
    """Takes orders, gives them back when told to, and answers callers; starts nothing."""

    def __init__(self, wire: Wire, node: str) -> None:
        self.wire, self.node = wire, node
        self.sandboxes: dict[str, NodeCreate] = {}
        self.orders = 0
        self.vetoes = False
        self.answers = True

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, cluster: Cluster, node: str) -> AsyncIterator[BookNode]:
        Iam.create_node(cluster.home, node)
        async with cluster.connected(node) as wire:
            self = cls(wire, node)
            async with serving_internal(wire, subjects.node_create(node), self.create):
                beating = asyncio.create_task(self.beat())
                try:
                    yield self
                finally:
                    beating.cancel()
                    await asyncio.gather(beating, return_exceptions=True)

    async def beat(self) -> None:
        while True:
            beat = Heartbeat(
                node=self.node,
                epoch=1,
                time=now_ms(),
                backends={"container": []},
                cpu=8,
                memory=64 * GIB,
                cpu_used=0,
                memory_used=0,
                sandboxes=len(self.sandboxes),
            )
            await self.wire.publish(subjects.node_heartbeat(self.node), beat.model_dump_json().encode())
            await asyncio.sleep(0.2)

    async def create(self, message: Received) -> bytes | None:
        order = decode(NodeCreate, message.data)
        self.orders += 1
        if self.vetoes:
            return await self.give_back(order, message.reply)
        self.sandboxes.setdefault(order.sandbox, order)
        return ok(record(order.sandbox)) if self.answers else None

    async def give_back(self, order: NodeCreate, reply: str) -> bytes | None:
        veto = Veto(order=order, reply=reply, reason=f"{self.node} is full")
        answer = await self.wire.request(subjects.SCHED_VETO, veto.model_dump_json().encode(), timeout=5)
        try:
            result(answer.data)
        except DsecError as error:
            return failed(error)
        return None

    async def store(self, kept: Record) -> None:
        subject = "$KV.registry." + subjects.registry_key(kept.project, kept.sandbox)
        await self.wire.request(subject, kept.model_dump_json().encode(), timeout=5)


class Cluster:
    """A broker with iam and streams, one scheduler, `cores` cores and a tenant's connection."""

    def __init__(self, home: Home, url: str) -> None:
        self.home, self.url = home, url
        self.broker: Broker
        self.core: Wire
        self.tenant: Wire
        self.operator: Wire

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, path: Path, *, cores: int = 1) -> AsyncIterator[Cluster]:
        home, context = Home(path), Context(path)
        prepared = Iam.prepare(home)
        Iam.create_principal(home, PROJECT, PRINCIPAL)
        async with contextlib.AsyncExitStack() as stack:
            enter = stack.enter_async_context
            broker = await enter(Broker.running(home.broker, auth=prepared.auth))
            self = cls(home, broker.url)
            self.broker = broker
            await enter(Iam.running(await enter(self.connected("iam")), Context(home.part("iam"))))
            self.core = await enter(self.connected("core"))
            await ensure(self.core.jetstream, exec_bytes=64 << 20)
            scheduler = await enter(self.connected("scheduler"))
            await enter(Scheduler.running(scheduler, context, listen=0.5))
            if cores:
                await enter(Core.running(self.core, context))
            for _ in range(cores - 1):
                await enter(Core.running(await enter(self.connected("core")), context))
            self.tenant = await enter(self.connected(PRINCIPAL))
            self.operator = await enter(self.connected("operator"))
            yield self

    def connected(self, owner: str) -> AbstractAsyncContextManager[Wire]:
        """A connection with the rights of a role, node or principal."""
        return Wire.connect(self.url, Credentials.load(self.home.credentials / f"{owner}.json"))

    async def ask(self, noun: str, verb: str, body: bytes, *, timeout: float = 5) -> Any:
        """What stands under `ok` in the answer. Raises the error in it."""
        subject = subjects.request(noun, verb, PROJECT, PRINCIPAL)
        return result((await self.tenant.request(subject, body, timeout=timeout)).data)

    async def create(
        self,
        key: str | None = None,
        spec: Mapping[str, Any] | None = None,
        secrets: Mapping[str, str] | None = None,
        *,
        timeout: float = 5,
    ) -> str:
        """The id of the sandbox."""
        request = CreateSandbox(
            op=key or ids.new_operation(),
            deadline=now_ms(10),
            spec=dict(spec or {"image": "base"}),
            secrets=dict(secrets or {}),
        )
        answer = await self.ask("sandbox", "create", request.model_dump_json().encode(), timeout=timeout)
        return str(answer["sandbox"])

    async def stored(self, stream: str, subject: str) -> list[Stored]:
        """All messages of a stream that match; for what is appended without waiting, give it a moment."""
        await asyncio.sleep(0.1)
        async with DirectGet.running(self.operator) as reader:
            batch = await reader.batch(stream, subject, 1, count=10_000, max_bytes=64 << 20)
        return batch.messages
