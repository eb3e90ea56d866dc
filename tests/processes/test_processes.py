"""Plugins and drivers in processes of their own, for real: they join, drain, are killed and come back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.benchmarks.hotplug import measure
from dsec.bus.errors import DsecError, InfraError, NoCapacity, SpecError
from dsec.bus.home import Home, default_node
from dsec.bus.nats.credentials import Credentials
from dsec.bus.processes import Options
from dsec.plugins.iam import Iam
from dsec.sdk import Client, Sandbox
from dsec.sdk.testing import platform, traces
from dsec.sdk.testing.plugin import add_base

DRIVER = f"d-{default_node()[2:]}-container"


class Site:
    """A platform whose node has its container driver in a process of its own."""

    def __init__(self, home: Path, up: platform.Part, client: Client) -> None:
        self.home, self.up, self.client = home, up, client
        self.driver: platform.Part | None = None

    async def join(self, *options: str) -> platform.Part:
        self.driver = await platform.spawn_driver(self.home, "container", options=options)
        await platform.known(self.up, "container")
        return self.driver

    async def create(self) -> Sandbox:
        return await self.client.create(backend="container", image="base")

    def log(self) -> str:
        return (self.home / "driver-container.log").read_text()


@pytest.fixture
async def site(tmp_path: Path, base_file: Path) -> AsyncIterator[Site]:
    await add_base(tmp_path, base_file)
    up = await platform.spawn(tmp_path, options=["--without-driver", "container"])
    site = Site(tmp_path, up, up.client())
    try:
        async with site.client:
            await site.join()
            yield site
    finally:
        await up.stop()
        if site.driver is not None:
            await site.driver.stop()


async def outcome(site: Site) -> Sandbox | DsecError:
    try:
        return await site.create()
    except DsecError as error:
        return error


@pytest.mark.node
async def test_on_sigterm_a_driver_finishes_its_creates_and_what_it_started_goes_on(site: Site) -> None:
    first = await site.create()
    running = asyncio.create_task(first.run("sleep 3; echo went on"))
    creating = [asyncio.create_task(outcome(site)) for _ in range(12)]
    await asyncio.sleep(0.15)
    assert site.driver is not None
    await site.driver.stop()
    assert site.driver.process.returncode == 0
    assert "unfinished" not in site.log()
    outcomes = await asyncio.gather(*creating)
    made = [one for one in outcomes if isinstance(one, Sandbox)]
    assert {type(one) for one in outcomes} <= {Sandbox, NoCapacity}
    for sandbox in made:
        assert (await sandbox.run(["true"])).ok
    assert isinstance(await outcome(site), NoCapacity)
    assert (await running).stdout == "went on\n"
    await site.join()
    assert (await site.create()).record.state == "running"
    ids = [one.id for one in (first, *made)]
    await asyncio.gather(*(one.destroy() for one in (first, *made)))
    assert traces.of(site.home, *ids) == []


@pytest.mark.node
async def test_a_destroy_waits_for_the_driver_and_a_death_meanwhile_is_told(site: Site) -> None:
    doomed, mortal = await site.create(), await site.create()
    assert site.driver is not None
    await site.driver.kill()
    destroying = asyncio.create_task(doomed.destroy())
    found = [line.split() for line in traces.of(site.home, mortal.id)]
    inits = [Path(path) / "init/cgroup.procs" for kind, path in found if kind == "cgroup"]
    for pid in "".join(init.read_text() for init in inits if init.exists()).split():
        os.kill(int(pid), signal.SIGKILL)
    await asyncio.sleep(0.5)
    assert not destroying.done()
    await site.join()
    await asyncio.wait_for(destroying, 15)
    assert traces.of(site.home, doomed.id) == []
    async with asyncio.timeout(10):
        while (record := await mortal.stat()).state == "running":  # noqa: ASYNC110 - asked as a tenant does
            await asyncio.sleep(0.1)
    assert record.state == "failed"
    with pytest.raises(InfraError):
        await mortal.run(["true"])
    await mortal.destroy()


@pytest.mark.node
async def test_the_operator_lists_and_drains_what_runs(site: Site) -> None:
    home = ("--home", str(site.home))
    listed = await platform.command("plugin", "ls", "--json", *home)
    told = [json.loads(line) for line in listed.splitlines()]
    kinds = [one["name"] for one in told]
    assert kinds == ["core", "driver", "edge", "fncall", "iam", "journal", "scheduler"]
    assert told[1]["id"] == DRIVER
    await platform.command("plugin", "drain", *home, "driver", DRIVER)
    assert site.driver is not None
    assert await asyncio.wait_for(site.driver.process.wait(), 20) == 0
    with pytest.raises(InfraError, match="node_lost"):
        await platform.command("plugin", "drain", *home, "driver", DRIVER)


@pytest.mark.node
@pytest.mark.kill
async def test_an_edge_that_starts_while_its_driver_is_away_keeps_its_sandboxes(
    tmp_path: Path, base_file: Path
) -> None:
    await add_base(tmp_path, base_file)
    apart = ["--without-driver", "container"]
    async with platform.running(tmp_path, only="control") as control, control.client() as client:
        edge = await platform.spawn(tmp_path, only="edge", options=apart)
        driver = await platform.spawn_driver(tmp_path, "container")
        await platform.known(control, "container")
        sandbox = await client.create(backend="container", image="base")
        await sandbox.files.write("/kept", b"1")
        running = asyncio.create_task(sandbox.run("sleep 4; cat /kept"))
        await asyncio.sleep(0.3)
        await driver.kill()
        await edge.kill()
        edge = await platform.spawn(tmp_path, only="edge", options=apart)
        with pytest.raises(InfraError, match="away"):
            await sandbox.run(["true"])
        with pytest.raises(NoCapacity):
            await client.create(backend="container", image="base")
        driver = await platform.spawn_driver(tmp_path, "container")
        assert (await asyncio.wait_for(running, 30)).stdout == "1"
        assert (await sandbox.stat()).state == "running"
        await sandbox.destroy()
        assert traces.of(tmp_path, sandbox.id) == []
        await edge.stop()
        await driver.stop()


@pytest.mark.node
@pytest.mark.kill
@pytest.mark.slow
async def test_parts_killed_under_load_lose_and_double_nothing() -> None:
    figures = await measure(print, rate=40, containers=1, seconds=8)
    assert (figures["lost"], figures["duplicated"]) == (0, 0), figures
    assert {"core_kills", "scheduler_kills", "driver_kills"} <= set(figures)
    assert figures["acknowledged"] >= 0.9 * figures["offered"], figures


def test_credentials_of_another_kind_or_node_are_refused_before_anything_starts(tmp_path: Path) -> None:
    home = Home(tmp_path)
    Iam.prepare(home, nodes=["n-a"])
    driver = Iam.create_plugin(home, "n-a", "x")
    core = Credentials.load(home.credentials / "core.json")
    Options("x", "driver", "", driver, home, node="n-a", concurrency=1)
    with pytest.raises(SpecError):
        Options("x", "driver", "", core, home)
    with pytest.raises(SpecError):
        Options("x", "plugin", "", driver, home)
    with pytest.raises(SpecError):
        Options("x", "driver", "", driver, home, node="n-b")
    with pytest.raises(SpecError):
        Options("x", "plugin", "", core, home, concurrency=0)
