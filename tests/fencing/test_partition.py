"""Nodes that are really cut off: frozen, failed, destroyed on return; and outages that fail nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator

import pytest

from dsec.bus import subjects
from dsec.bus.errors import DsecError, Failure, InfraError, NodeLost
from dsec.bus.messages import Audit, Drained, Standing, State
from dsec.sdk import Client, Sandbox
from tests.fencing import site as sites
from tests.fencing.beats import beating
from tests.fencing.part import FAIL, FREEZE, NODES, SUSPECT
from tests.fencing.site import Site, eventually

pytestmark = [pytest.mark.node, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    path = tmp_path_factory.mktemp("fencing")
    path.parent.chmod(0o711)
    async with sites.running(path, NODES) as site:
        yield site


@pytest.fixture
async def client(site: Site) -> AsyncIterator[Client]:
    """All nodes are well and empty before and after."""
    for node in NODES:
        await site.net.join(node)
    await eventually(lambda: everybody(site, Standing.ALIVE), within=20)
    async with site.client() as client:
        yield client
        for record in [record async for record in client.list()]:
            with contextlib.suppress(DsecError):
                await (await client.attach(record.sandbox)).destroy()


async def everybody(site: Site, standing: Standing) -> bool:
    fleet = await site.fleet()
    return set(fleet) == set(NODES) and all(node.standing is standing for node in fleet.values())


async def standing(site: Site, node: str, wanted: Standing) -> bool:
    return (await site.fleet())[node].standing is wanted


async def one_on_each(client: Client, name: str) -> dict[str, Sandbox]:
    """A sandbox on each node, with keys `<name>-0`, `<name>-1`…"""
    found: dict[str, Sandbox] = {}
    for number in range(60):
        made = await client.create(backend="container", image="base", key=f"{name}-{number}")
        if made.record.node in found:
            await made.destroy()
        found.setdefault(made.record.node, made)
        if len(found) == len(NODES):
            return found
    raise AssertionError("placement avoids a node")


async def test_a_node_that_is_cut_off_is_fenced_and_its_work_runs_once_at_a_time(
    site: Site, client: Client
) -> None:
    first = await client.create(backend="container", image="base", key="rollout")
    others = [
        one for one in (await one_on_each(client, "other")).values() if one.record.node != first.record.node
    ]
    node = first.record.node
    rollout = asyncio.create_task(first.run("sleep 60"))
    async with beating(site, first, *others) as (beats, *rest):
        began = time.time()
        await site.net.cut(node)

        await eventually(lambda: standing(site, node, Standing.SUSPECT), within=SUSPECT + 5)
        states = {record.sandbox: record.state async for record in client.list()}
        assert states[first.id] is State.UNKNOWN
        assert {states[other.id] for other in others} == {State.RUNNING}
        with pytest.raises(InfraError):  # it may still run there
            await client.create(backend="container", image="base", key="rollout", timeout=1)

        await eventually(lambda: standing(site, node, Standing.FAILED), within=FAIL + 5)
        assert beats.silent > 0.5
        assert beats.times[-1] - began < FREEZE + 1.5
        with pytest.raises(NodeLost) as lost:
            await rollout
        assert lost.value.failure is Failure.INFRA
        record = await first.stat()
        assert (record.state, record.failure, record.fenced) == (State.FAILED, Failure.INFRA, True)

        second = await client.create(backend="container", image="base", key="rollout")
        assert second.record.node != node
        async with beating(site, second) as (again,):
            await site.net.join(node)
            await eventually(lambda: standing(site, node, Standing.ALIVE), within=20)
            assert not site.upper(node, first.id).exists()
            assert beats.times[-1] < again.times[0]
            with pytest.raises(NodeLost):
                await first.run("true")
            assert (await first.stat()).state is State.FAILED
            assert again.silent < 1
        assert all(other.gap(began) < 2 for other in rest)
    same = await client.create(backend="container", image="base", key="rollout")
    assert same.id == second.id
    await is_told_once(site, first)


async def is_told_once(site: Site, sandbox: Sandbox) -> None:
    project = sandbox.record.project
    assert len(await site.stored("EVENT", subjects.event("failed", project, sandbox.id))) == 1
    trail = await site.stored("AUDIT", subjects.audit("scheduler", "fail", project))
    targets = [Audit.model_validate_json(one.data).target for one in trail]
    assert targets.count(sandbox.id) == 1


async def test_a_broker_that_stands_still_for_longer_than_all_patience_fails_nothing(
    site: Site, client: Client
) -> None:
    sandboxes = await one_on_each(client, "outage")
    lives = {node: status.epoch for node, status in (await site.fleet()).items()}
    async with beating(site, *sandboxes.values()) as beats:
        timed = asyncio.create_task(sandboxes[NODES[0]].run("sleep 3.5; echo in time", timeout=FREEZE + 2.5))
        await asyncio.sleep(0.2)
        os.kill(site.broker_pid, signal.SIGSTOP)
        await asyncio.sleep(FAIL + 2)
        stopped = [one.silent for one in beats]
        os.kill(site.broker_pid, signal.SIGCONT)
        assert all(silent > 2 for silent in stopped)
        await eventually(lambda: everybody(site, Standing.ALIVE), within=20)
        assert (await timed).stdout == "in time\n"  # its timeout stood still while it was frozen
        await asyncio.sleep(0.5)
        assert all(one.silent < 1 for one in beats)
        for sandbox in sandboxes.values():
            assert (await sandbox.stat()).state is State.RUNNING
            assert (await sandbox.run(["echo", "on"])).stdout == "on\n"
    fleet = await site.fleet()
    assert all(fleet[node].epoch == life + 1 and fleet[node].fenced < life for node, life in lives.items())


async def test_a_broker_that_is_killed_freezes_nobody(site: Site, client: Client) -> None:
    sandboxes = await one_on_each(client, "killed")
    lives = {node: status.epoch for node, status in (await site.fleet()).items()}
    async with beating(site, *sandboxes.values()) as beats:
        began = time.time()
        os.kill(site.broker_pid, signal.SIGKILL)
        await eventually(lambda: everybody(site, Standing.ALIVE), within=20)
        await asyncio.sleep(1)
        assert all(one.gap(began) < 1.5 for one in beats)
    assert {node: status.epoch for node, status in (await site.fleet()).items()} == lives


async def test_two_of_three_at_once_wait_for_the_operators_word(site: Site, client: Client) -> None:
    sandboxes = await one_on_each(client, "two")
    dead, alive, cut_too = NODES
    async with beating(site, *(sandboxes[node] for node in NODES)) as (_, going, back):
        await site.net.cut(dead)
        await site.net.cut(cut_too)

        async def both_are_held() -> bool:
            fleet = await site.fleet()
            return fleet[dead].held and fleet[cut_too].held

        await eventually(both_are_held, within=FAIL + 6)
        held = await sandboxes[dead].stat()
        assert (held.state, held.failure) == (State.UNKNOWN, None)
        await site.operate("fail", dead, "--reason", "burnt down")
        record = await sandboxes[dead].stat()
        assert (record.state, record.failure, record.reason) == (State.FAILED, Failure.INFRA, "burnt down")
        await site.net.join(cut_too)
        await site.net.join(dead)
        await eventually(lambda: everybody(site, Standing.ALIVE), within=20)
        await asyncio.sleep(0.5)
        assert going.silent < 1
        assert back.silent < 1
        assert (await sandboxes[cut_too].run(["echo", "back"])).stdout == "back\n"
        assert not site.upper(dead, sandboxes[dead].id).exists()
    assert (await sandboxes[alive].stat()).state is State.RUNNING


async def test_an_agent_that_was_dead_for_too_long_destroys_what_it_left(site: Site, client: Client) -> None:
    """The watcher dies, too, and its successor fails what died before it came."""
    node = NODES[1]
    lost = (await one_on_each(client, "agent"))[node]
    running = await lost.start("sleep 99", detach=True)
    before = (await site.fleet())[node].epoch
    await site.parts[node].kill()
    await site.parts.pop("watcher").kill()
    await site.start_watcher()
    await eventually(lambda: standing(site, node, Standing.FAILED), within=FAIL + 15)
    assert site.upper(node, lost.id).exists()
    with contextlib.closing(sqlite3.connect(site.home.node(node) / "journal.db")) as journal, journal:
        journal.execute("UPDATE meta SET epoch = 0")  # as a disk that was restored has it
    await site.start_edge(node)
    assert not site.upper(node, lost.id).exists()
    await eventually(lambda: standing(site, node, Standing.ALIVE), within=10)
    assert (await site.fleet())[node].epoch > before
    assert (await lost.stat()).state is State.FAILED
    for call in (lost.run("true"), running.kill(), lost.destroy()):
        with pytest.raises(NodeLost):
            await call
    await is_told_once(site, lost)


async def test_a_draining_node_takes_nothing_new_until_that_is_undone(site: Site, client: Client) -> None:
    node = NODES[0]
    kept = (await one_on_each(client, "drain"))[node]
    told = Drained.model_validate_json(await site.operate("drain", node))
    assert (told.draining, told.sandboxes) == (True, 1)

    async def is_draining(*, wanted: bool) -> bool:
        return (await site.fleet())[node].draining is wanted

    await eventually(lambda: is_draining(wanted=True), within=5)
    made = [await client.create(backend="container", image="base") for _ in range(6)]
    assert node not in {one.record.node for one in made}
    assert (await kept.run(["echo", "on"])).stdout == "on\n"
    told = Drained.model_validate_json(await site.operate("drain", node, "--destroy", "--wait"))
    assert (told.draining, told.sandboxes) == (True, 0)
    await site.operate("drain", node, "--undo")
    await eventually(lambda: is_draining(wanted=False), within=5)
