"""A running platform under a few requests: its metrics grow by those, its log lines tell their operations."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import orjson
import pytest

import dsec
from dsec.bus.home import Home
from dsec.bus.metrics import names
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.sdk import Client, DsecError
from dsec.sdk.testing import platform
from tests.metrics.support import HELLO, NODES, OBSERVED, Observed, Page, scraped

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MINE = {"project": "p-default"}


class Growth:
    """What both processes tell, before and after."""

    def __init__(self, running: Observed) -> None:
        self._parts = running.control, running.sim
        self._before: list[Page] = []

    async def begin(self) -> None:
        self._before = [await scraped(part) for part in self._parts]

    async def of(self) -> Any:
        after = [await scraped(part) for part in self._parts]

        def grown(name: str, **labels: str) -> float:
            was = sum(page.value(name, **labels) for page in self._before)
            return sum(page.value(name, **labels) for page in after) - was

        return grown


async def growth(running: Observed) -> Growth:
    made = Growth(running)
    await made.begin()
    return made


async def test_creates_commands_and_files_are_counted_by_endpoint_project_and_backend(
    running: Observed, client: Client
) -> None:
    before = await growth(running)
    async with client.sandbox(backend="sim", image="any") as sandbox:
        assert (await sandbox.run("echo")).stdout == HELLO
        await sandbox.run("false")
        page = await scraped(running.sim)
        assert page.value("dsec_sandboxes", backend="sim", state="running", **MINE) == 1
        assert page.value("dsec_node_cpu_promised_cores") > 0
        with pytest.raises(DsecError):
            await sandbox.files.read("/etc/passwd")  # which a simulated node has not
    grown = await before.of()
    assert grown("dsec_requests_total", part="core", endpoint="sandbox.create", code="ok", **MINE) == 1
    assert grown("dsec_requests_total", part="scheduler", endpoint="sched.place", code="ok") == 1
    assert grown("dsec_placements_total") == 1
    assert grown("dsec_creates_total", backend="sim", code="ok", **MINE) == 1
    assert grown("dsec_create_seconds_count", backend="sim", **MINE) == 1
    assert grown("dsec_requests_total", endpoint="exec.start", code="ok", **MINE) == 2
    assert grown("dsec_requests_total", endpoint="sandbox.destroy", code="ok", **MINE) == 1
    assert grown("dsec_requests_total", code="unsupported", failure="spec", **MINE) >= 1
    assert grown("dsec_request_seconds_count", endpoint="exec.start") == 2
    assert grown("dsec_records_total", outcome="stored", part="sim") > 0


async def test_failures_are_counted_by_class_and_code(running: Observed, client: Client) -> None:
    before = await growth(running)
    async with client.sandbox(backend="sim", image="any") as sandbox:
        with pytest.raises(DsecError, match="simulated"):
            await sandbox.pause()
    first = await client.create(backend="sim", image="any", key="same-key")
    with pytest.raises(DsecError):
        await client.create(backend="sim", image="another", key="same-key")
    await first.destroy()
    with pytest.raises(DsecError):
        await client.create(backend="none-has-it", image="any", timeout=3)
    grown = await before.of()
    assert grown("dsec_requests_total", endpoint="sandbox.pause", code="limit", failure="limit") == 1
    assert grown("dsec_requests_total", part="core", code="conflict", failure="spec", **MINE) == 1
    assert grown("dsec_requests_total", part="core", code="no_capacity", failure="infra", **MINE) >= 1
    assert grown("dsec_creates_total", backend="none-has-it") == 0


async def test_what_a_projects_rate_refuses_is_its_shed(running: Observed, client: Client) -> None:
    await client.projects.create("p-slow", quota={"creates_per_second": 1})
    who = await client.principals.create("u-slow", project="p-slow")
    before = await growth(running)
    async with Client(running.control.url, who) as slow:
        asked = (slow.create(backend="sim", image="any", timeout=0.5) for _ in range(8))
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    refused = [one for one in outcomes if isinstance(one, DsecError) and one.code == "overloaded"]
    grown = await before.of()
    assert refused
    assert grown("dsec_sheds_total", project="p-slow", by="project") >= len(refused)
    assert grown("dsec_sheds_total", project="p-default") == 0
    assert grown("dsec_requests_total", project="p-slow", code="overloaded", failure="infra") >= len(refused)


async def test_a_forged_request_is_counted_and_nothing_of_it_becomes_a_label(running: Observed) -> None:
    before = await growth(running)
    who = await asyncio.to_thread(Credentials.load, running.control.credentials)
    async with Wire.connect(running.control.url, who) as wire:
        await wire.publish(f"sandbox.create.{who.project}.{who.principal}", b"{}", "_INBOX.u-else.x")
        await wire.request(f"sandbox.list.{who.project}.{who.principal}", b'{"op":"x"}', timeout=5)
    assert (await before.of())("dsec_requests_unserved_total", part="core") == 1
    for part in (running.control, running.sim):
        labels = [one.labels for f in (await scraped(part)).families.values() for one in f.samples]
        told = {value for one in labels for value in one.values()}
        assert not {value for value in told if value.startswith(("u-", "s-", "e-", "S"))}, told


async def test_a_batch_is_counted_when_it_is_done(running: Observed, client: Client) -> None:
    before = await growth(running)
    batch = await client.create_many(7, backend="sim", image="any")
    await batch.wait()
    await asyncio.sleep(0.5)
    grown = await before.of()
    assert grown("dsec_batches_total", part="core") == 1
    assert grown("dsec_batch_sandboxes_total", outcome="ran") == 7
    assert grown("dsec_batch_sandboxes_total", outcome="failed") == 0
    assert grown("dsec_creates_total", code="ok", **MINE) == 7
    assert grown("dsec_placements_total") == 7
    await client.job(batch.job).kill()


async def test_control_plane_and_streams_tell_how_they_are(running: Observed) -> None:
    page = await scraped(running.control)
    while not page.value("dsec_stream_bytes", stream="AUDIT"):  # asked of the broker once a second
        await asyncio.sleep(0.2)
        page = await scraped(running.control)
    assert page.value("dsec_nodes", standing="alive") == NODES
    assert page.value("dsec_node_silent_seconds") < 5
    audit, most = (page.value(f"dsec_stream_{name}", stream="AUDIT") for name in ("bytes", "max_bytes"))
    assert 0 < audit < most
    for part in ("iam", "core", "scheduler", "journal"):
        assert page.value("dsec_broker_connected", part=part) == 1
        assert 0 < page.value("dsec_broker_round_trip_seconds", part=part) < 1


async def test_every_metric_that_is_told_is_in_the_list_with_its_labels_and_kind(
    running: Observed,
) -> None:
    seen: set[str] = set()
    for part in (running.control, running.sim):
        for family in (await scraped(part)).families.values():
            if family.name.startswith("dsec_"):
                known = names.ALL.get(family.name) or names.ALL[f"{family.name}_total"]
                common = () if known in names.OF_PROCESS else names.COMMON
                assert family.type == known.kind
                for one in family.samples:
                    assert set(one.labels) - {"le"} == {*common, *known.labels}
                seen.add(known.name)
    assert len(seen) > 25


async def test_lines_of_core_scheduler_and_node_share_the_operation_and_the_trace_of_a_create(
    running: Observed, client: Client
) -> None:
    with dsec.trace(GOOD):
        sandbox = await client.create(
            backend="sim", image="any", key="traced-1", secrets={"TOKEN": "hunter2-hunter2"}
        )
    await sandbox.destroy()
    lines = [line for line in running.lines() if line.get("op") == "traced-1"]
    traced = {line["message"].split(".p-")[0] for line in lines if line.get("trace") == GOOD[3:35]}
    assert any(one.startswith("placed on n-sim-") for one in traced), lines
    assert any(one.startswith("sandbox.create") for one in traced)
    assert any(one.startswith("node.create.n-sim-") for one in traced)
    (ordered,) = [line for line in lines if line["message"].startswith("sandbox.create")]
    assert (ordered["project"], ordered["principal"]) == ("p-default", "u-admin")
    (made,) = [line for line in lines if line["message"].startswith("node.create")]
    assert (made["sandbox"], made["level"], made["logger"]) == (sandbox.id, "debug", "dsec.bus.handlers")
    for file in ("up-control.log", "sim.log"):
        assert b"hunter2" not in (running.home / file).read_bytes()


async def test_the_audit_trail_has_the_trace_of_a_call_and_nothing_without(
    running: Observed, client: Client
) -> None:
    heard: list[dict[str, Any]] = []
    who = await asyncio.to_thread(Credentials.load, Home(running.home).credentials / "operator.json")
    async with Wire.connect(running.control.url, who) as wire:
        await wire.subscribe("audit.>", lambda message: heard.append(orjson.loads(message.data)))
        with dsec.trace(GOOD):
            traced = await client.create(backend="sim", image="any")
            await traced.destroy()
        plain = await client.create(backend="sim", image="any")
        await asyncio.sleep(0.3)
    of = [entry for entry in heard if entry["target"] == traced.id]
    assert [entry.get("trace") for entry in of] == [GOOD[3:35]] * 3  # core, node; destroy
    assert [entry.get("trace") for entry in heard if entry["target"] == plain.id] == [None] * 2
    await plain.destroy()


async def test_a_malformed_trace_is_replaced_and_a_client_can_begin_one_each_time(
    running: Observed,
) -> None:
    who = await asyncio.to_thread(Credentials.load, running.control.credentials)
    subject = f"sandbox.list.{who.project}.{who.principal}"
    body = orjson.dumps({"op": "malformed-1", "deadline": 1 << 50})
    async with Wire.connect(running.control.url, who) as wire:
        await wire.request(subject, body, timeout=5, headers={"traceparent": "00-zz-1-01"})
    async with Client(running.control.url, running.control.credentials, trace=True) as always:
        for _ in range(2):
            assert [one async for one in always.list(state="paused")] == []
    lines = running.lines()
    (replaced,) = [line for line in lines if line.get("op") == "malformed-1"]
    assert len(replaced["trace"]) == 32
    listed = [line.get("trace") for line in lines if line["message"].startswith("sandbox.list")]
    assert len(set(listed)) >= 3


async def test_a_process_that_has_no_port_for_its_metrics_ends_with_a_typed_error(
    running: Observed, tmp_path: Path
) -> None:
    taken = running.control.ready["metrics"].removeprefix("http://")
    with pytest.raises(dsec.DsecError, match="already_running"):
        await platform.command("up", "--home", str(tmp_path), "--only", "control", "--metrics", taken)
    with pytest.raises(dsec.DsecError, match="bad_request"):
        await platform.command("sim", "--home", str(running.home), "--log", "xml")
    assert not (tmp_path / "broker").exists()


async def test_up_json_tells_where_and_stays_private(running: Observed) -> None:
    ready = Home(running.home).ready()
    assert ready["metrics"] == running.control.ready["metrics"]
    assert stat.S_IMODE((running.home / "up.json").stat().st_mode) == 0o600
    assert OBSERVED[1] == "127.0.0.1:0"
    assert not ready["metrics"].endswith(":0")
