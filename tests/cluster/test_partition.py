"""One of three machines, with a node and a broker on each, is really cut off: fenced, and no work runs twice.

The server beside the node leads the table of nodes as it is cut off, so the node has an answer of "the
leader" for as long as that one takes to find that it has lost the others: 10 to 20 s
(docs/adr/0015-clusters.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.bus.errors import DsecError, Failure, NodeLost
from dsec.bus.home import Home
from dsec.bus.messages import Standing, State
from dsec.bus.nats.cluster import Cluster, Server
from dsec.bus.nats.directget import answer_of
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam import Iam
from dsec.sdk import Client, Sandbox
from tests.cluster.trio import STORE, Trio
from tests.fencing.beats import beating
from tests.fencing.net import HUB, Net
from tests.fencing.part import NODES
from tests.fencing.site import Site, eventually

pytestmark = [
    pytest.mark.node,
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.alone,
]

FREEZE, FAIL, SUSPECT = 3.0, 26.0, 1.5
"""Seconds; as with the real 45 and 75 the watcher waits for longer than a node and a lost leader together."""


@contextlib.asynccontextmanager
async def machines(path: Path) -> AsyncIterator[Site]:
    """Control plane in a namespace of its own, a node and a server in each of three others."""
    async with Net.running() as net:
        site = Site(Home(path), net)
        spaces = {node: await net.add(node) for node in NODES}
        members = [Server(f"nats-{n}", f"{HUB}.{10 + n}", listen=f"{HUB}.{10 + n}") for n in (1, 2, 3)]
        inside = [("nsenter", f"--net=/run/netns/{space}") for space in spaces.values()]
        prepared = await asyncio.to_thread(Iam.prepare, site.home, nodes=NODES)
        trio = Trio(path / "nats", Cluster(tuple(members), prepared.auth, file_bytes=STORE))
        trio.inside = dict(zip(trio.names, inside, strict=True))
        await asyncio.to_thread(trio.cluster.write, trio.directory)
        try:
            for name in trio.names:
                await trio.start(name)
            await site.start("control", net.control, "control", str(path), trio.url)
            await site.start_watcher()
            beside = zip(spaces.items(), trio.names, strict=True)
            await asyncio.gather(
                *(
                    site.start(node, space, "edge", str(path), trio.url_of(name), node)
                    for (node, space), name in beside
                )
            )
            async with Wire.connect(site.url, prepared.credentials("operator"), "tests") as site.operator:
                yield site
        finally:
            for node in spaces:
                await net.join(node)
            for part in reversed(site.parts.values()):
                await part.stop()
            for name in list(trio.processes):
                await trio.end(name)


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setenv("DSEC_TESTS_FENCING", f"{FREEZE} {FAIL} {SUSPECT}")
    for path in (tmp_path, tmp_path.parent):
        path.chmod(0o711)
    async with machines(tmp_path) as site:
        await eventually(lambda: standing(site, Standing.ALIVE, *NODES), within=20)
        yield site


async def standing(site: Site, wanted: Standing, *nodes: str) -> bool:
    fleet = await site.fleet()
    return all(fleet[node].standing is wanted for node in nodes)


async def one_on_each(client: Client) -> dict[str, tuple[str, Sandbox]]:
    """A key and its sandbox on each node."""
    found: dict[str, tuple[str, Sandbox]] = {}
    for number in range(60):
        made = await client.create(backend="container", image="base", key=f"rollout-{number}")
        found.setdefault(made.record.node, (f"rollout-{number}", made))
        if len(found) == len(NODES):
            return found
    raise AssertionError("placement avoids a node")


async def beside_the_leader(site: Site) -> str:
    """The node on the machine whose server leads the table of nodes."""
    told = answer_of(await site.operator.request("$JS.API.STREAM.INFO.KV_nodes", b"", timeout=5))
    return NODES[int(told["cluster"]["leader"].removeprefix("nats-")) - 1]


async def test_a_machine_that_is_cut_off_with_the_leader_is_fenced_and_its_work_runs_once(site: Site) -> None:
    async with site.client(patience=60) as client:
        everywhere = await one_on_each(client)
        node = await beside_the_leader(site)
        key, first = everywhere[node]
        others = [sandbox for at, (_, sandbox) in everywhere.items() if at != node]
        async with beating(site, first, *others) as (beats, *rest):
            began = time.time()
            await site.net.cut(node)
            await eventually(lambda: standing(site, Standing.FAILED, node), within=90)
            assert beats.times[-1] - began < FAIL
            assert beats.silent > 1
            record = await first.stat()
            assert (record.state, record.failure, record.fenced) == (State.FAILED, Failure.INFRA, True)
            second = await client.create(backend="container", image="base", key=key)
            assert second.record.node != node
            async with beating(site, second) as (again,):
                await site.net.join(node)
                await eventually(lambda: standing(site, Standing.ALIVE, *NODES), within=60)
                assert not site.upper(node, first.id).exists()
                assert beats.times[-1] < again.times[0]
                with pytest.raises(NodeLost):
                    await first.run("true")

            async def others_run() -> bool:  # an election is longer than the patience of this test
                return all(other.silent < 1 for other in rest)

            await eventually(others_run, within=30)
            assert {(await other.stat()).state for other in others} == {State.RUNNING}
            print(f"frozen {beats.times[-1] - began:.1f} s after the cut, {FREEZE:g} of them its patience")
        for record in [record async for record in client.list()]:
            with contextlib.suppress(DsecError):
                await (await client.attach(record.sandbox)).destroy()
