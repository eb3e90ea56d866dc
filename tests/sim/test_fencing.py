"""A simulated node is fenced as a real one is, and seen as every member is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from dsec.bus.errors import NodeLost
from dsec.bus.fencing import Patience
from dsec.bus.handlers import decode
from dsec.bus.messages import Audit, Record, State
from dsec.bus.nats.credentials import Credentials
from dsec.plugins.iam import Iam
from dsec.plugins.scheduler import silence
from dsec.plugins.scheduler.watcher import Watcher
from dsec.plugins.sim import Delay, SimConfig, SimNode, fleet
from dsec.sdk import Client, Sandbox
from tests.control.cluster import PRINCIPAL, PROJECT, Cluster
from tests.fencing.site import eventually
from tests.sim.relay import Relay

WELL, CUT = "n-sim-000", "n-sim-001"
NODE = Patience(probe=0.1, freeze=0.5)
WATCHER = silence.Patience(suspect=0.5, fail=3.0, grace=0.2, tick=0.05, window=30.0)
SLOW = SimConfig(delays={"exec": Delay(least=800, most=800)})


@dataclass(slots=True)
class Site:
    """Two simulated nodes, one of them behind `relay`."""

    cluster: Cluster
    home: Path
    relay: Relay
    well: SimNode
    cut: SimNode
    client: Client

    async def sandbox(self) -> Sandbox:
        """One on the node that will be cut off; under the key `kept`."""
        for number in range(100):
            made = await self.client.create(backend="sim", image="any", key=f"kept-{number}")
            if made.record.node == CUT:
                return made
        raise AssertionError("placement avoids a node")

    def declared(self, sandbox: Sandbox) -> Callable[[], Awaitable[bool]]:
        """Whether it was declared failed."""

        async def declared() -> bool:
            return (await self.registered(sandbox.id)).fenced

        return declared

    async def registered(self, sandbox: str) -> Record:
        (stored,) = await self.cluster.stored("KV_registry", f"$KV.registry.{PROJECT}.*.{sandbox}")
        return decode(Record, stored.data)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        cluster = await enter(Cluster.running(tmp_path / "cluster"))
        relay = await enter(Relay.running(cluster.url))
        stack.callback(relay.mend)
        nodes: dict[str, SimNode] = {}
        for name, url in ((WELL, cluster.url), (CUT, relay.url)):
            who = credentials(cluster, name)
            nodes |= await enter(fleet(url, {name: who}, tmp_path / name, SLOW, patience=NODE))
        client = await enter(Client.over(cluster.tenant, PROJECT, PRINCIPAL))
        await asyncio.sleep(0.3)
        yield Site(cluster, tmp_path, relay, nodes[WELL], nodes[CUT], client)


def credentials(cluster: Cluster, node: str) -> Credentials:
    Iam.create_node(cluster.home, node)
    return Credentials.load(cluster.home.credentials / f"{node}.json")


@contextlib.asynccontextmanager
async def watching(site: Site) -> AsyncIterator[None]:
    async with site.cluster.connected("scheduler") as wire, Watcher.running(wire, WATCHER):
        yield


async def frozen(node: SimNode) -> None:
    async def closed() -> bool:
        return not node.lives.open.is_set()

    await eventually(closed, within=5)


async def back(node: SimNode) -> None:
    await asyncio.wait_for(node.lives.open.wait(), 5)


async def test_what_was_declared_failed_is_destroyed_when_its_node_returns(site: Site) -> None:
    sandbox = await site.sandbox()
    async with watching(site):
        await asyncio.sleep(0.5)
        site.relay.cut()
        await frozen(site.cut)
        await eventually(site.declared(sandbox), within=10)
    record = await site.registered(sandbox.id)
    assert (record.state, record.epoch) == (State.FAILED, 1)
    site.relay.mend()
    await back(site.cut)
    assert (site.cut.lives.epoch, site.cut.lives.fenced, site.cut.sandboxes) == (2, 1, 0)
    assert site.well.lives.epoch == 1
    with pytest.raises(NodeLost):
        await sandbox.run(["true"])
    assert (await site.registered(sandbox.id)).fenced
    audits = [decode(Audit, one.data) for one in await site.cluster.stored("AUDIT", "audit.edge.lose.>")]
    assert [audit.target for audit in audits] == [sandbox.id]


async def test_the_key_of_a_lost_sandbox_makes_a_new_one(site: Site) -> None:
    sandbox = await site.sandbox()
    (key,) = (key for key, record in site.cut.books.answers.items() if sandbox.id.encode() in record)
    async with watching(site):
        await asyncio.sleep(0.5)
        site.relay.cut()
        await frozen(site.cut)
        await eventually(site.declared(sandbox), within=10)
    site.relay.mend()
    await back(site.cut)
    await asyncio.sleep(0.3)
    key = key.rpartition("/")[2]
    anew = await site.client.create(backend="sim", image="any", key=key)
    assert anew.id != sandbox.id
    assert (await site.client.create(backend="sim", image="any", key=key)).id == anew.id


async def test_a_node_that_is_back_in_time_goes_on_with_what_was_frozen(site: Site) -> None:
    sandbox = await site.sandbox()
    running = asyncio.create_task(sandbox.run(["true"]))
    await asyncio.sleep(0.1)
    site.relay.cut()
    await frozen(site.cut)
    await asyncio.sleep(0.5)
    assert not running.done()
    site.relay.mend()
    assert (await running).code == 0
    assert (site.cut.lives.epoch, site.cut.lives.fenced, site.cut.sandboxes) == (2, 0, 1)
    assert (await sandbox.stat()).state is State.RUNNING


async def test_a_node_that_was_declared_failed_while_it_was_ended_has_lost_its_sandboxes(
    site: Site, tmp_path: Path
) -> None:
    who = credentials(site.cluster, "n-sim-009")
    home = tmp_path / "ended"
    config = SimConfig(backends=("apart",))
    async with fleet(site.cluster.url, {"n-sim-009": who}, home, config, patience=NODE):
        await asyncio.sleep(0.3)
        sandbox = await site.client.create(backend="apart", image="any", key="ended")
        async with watching(site):
            await asyncio.sleep(0.5)
    async with watching(site):
        await eventually(site.declared(sandbox), within=10)
    for _ in range(2):  # what is lost stays lost
        async with fleet(site.cluster.url, {"n-sim-009": who}, home, config, patience=NODE) as nodes:
            assert nodes["n-sim-009"].sandboxes == 0
            with pytest.raises(NodeLost):
                await sandbox.run(["true"])


async def test_simulated_nodes_answer_discovery(site: Site) -> None:
    assert (await asked(site, f"$SRV.PING.edge.{WELL}"))["name"] == "edge"
    told = await asked(site, f"$SRV.INFO.edge.{CUT}")
    assert told["metadata"]["node"] == CUT
    assert f"node.create.{CUT}" in {one["subject"] for one in told["endpoints"]}
    await site.sandbox()
    stats = await asked(site, f"$SRV.STATS.edge.{CUT}")
    assert sum(one["num_requests"] for one in stats["endpoints"]) >= 1


async def asked(site: Site, subject: str) -> Any:
    return orjson.loads((await site.cluster.operator.request(subject, b"", timeout=2)).data)
