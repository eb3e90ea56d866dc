"""A real node whose driver runs in a process of its own: a create is followed through all four processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

import dsec
from dsec.bus.metrics import names
from dsec.sdk import Failure, State
from dsec.sdk.testing import platform
from dsec.sdk.testing.plugin import add_base
from tests.metrics.support import OBSERVED, logged, scraped

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OUTPUT = 300_000
"""Bytes: more than one answer carries, so that it goes through the stream."""

RARE = {"dsec_sheds_total", "dsec_fences_total", "dsec_node_freezes_total", "dsec_batch_sandboxes_total"}
"""Told only when it has happened; the other tests of this folder and of fencing see to that."""

pytestmark = pytest.mark.node


async def test_a_create_is_followed_through_core_scheduler_edge_and_driver_and_counted(
    tmp_path: Path, base_file: Path
) -> None:
    await add_base(tmp_path, base_file)
    apart = ("--without-driver", "container")
    async with platform.running(tmp_path, only="control", options=OBSERVED) as control:
        edge = await platform.spawn(tmp_path, only="edge", options=(*OBSERVED, *apart))
        driver = await platform.spawn_driver(tmp_path, "container", options=OBSERVED)
        try:
            await platform.known(control, "container")
            async with control.client() as client:
                await _work(client)
                await _counted(edge, driver)
                told = [await scraped(edge)]
                await _failed(client, edge)
                told += [await scraped(part) for part in (control, edge, driver)]
        finally:
            await edge.stop()
            await driver.stop()
    _followed(tmp_path)
    found = {one.name for page in told for family in page.families.values() for one in family.samples}
    assert {name for name, metric in names.ALL.items() if metric.kind != "histogram"} - found == RARE


async def _work(client: dsec.Client) -> None:
    with dsec.trace(TRACE):
        sandbox = await client.create(
            backend="container", image="base", key="followed", secrets={"TOKEN": "hunter2-hunter2"}
        )
        done = await sandbox.run(f"head -c {OUTPUT} /dev/zero; exit 3")
    assert (done.code, len(done.stdout_bytes)) == (3, OUTPUT)


async def _counted(edge: platform.Part, driver: platform.Part) -> None:
    page, mine = await scraped(edge), {"part": "edge", "node": str(edge.ready["node"])}
    assert page.value("dsec_creates_total", backend="container", project="p-default", code="ok", **mine) == 1
    assert page.value("dsec_create_seconds_count", backend="container", **mine) == 1
    assert page.value("dsec_sandboxes", backend="container", state="running", **mine) == 1
    assert page.value("dsec_requests_total", endpoint="exec.start", code="ok", **mine) == 1
    assert page.value("dsec_execs_ended_total", ended="exit", **mine) == 1
    assert page.value("dsec_exec_output_bytes_total", **mine) == OUTPUT
    for name in ("node_memory_promised_bytes", "node_disk_free_bytes", "node_open", "journal_commits_total"):
        assert page.value(f"dsec_{name}", **mine) > 0
    assert page.value("dsec_unacked_bytes", **mine) <= page.value("dsec_unacked_window_bytes", **mine)
    asked = await scraped(driver)
    assert asked.value("dsec_requests_total", part="driver", endpoint="driver.create", code="ok") == 1
    assert asked.value("dsec_request_seconds_count", part="driver", endpoint="driver.channel") >= 1


async def _failed(client: dsec.Client, edge: platform.Part) -> None:
    """A sandbox whose inside is killed from outside counts as failed, by class."""
    (sandbox,) = [one async for one in client.list(state=State.RUNNING)]
    os.kill(_init_of(sandbox.sandbox), signal.SIGKILL)
    held = await client.attach(sandbox.sandbox)
    while (record := await held.stat()).state is not State.FAILED:  # noqa: ASYNC110 - the node is asked
        await asyncio.sleep(0.1)
    page = await scraped(edge)
    failure = (record.failure or Failure.INFRA).value
    assert page.value("dsec_sandbox_failures_total", backend="container", failure=failure) == 1
    await held.destroy()


def _init_of(sandbox: str) -> int:
    """The process that is PID 1 of the sandbox."""
    for process in psutil.process_iter():
        with process.oneshot():
            try:
                if sandbox in Path(f"/proc/{process.pid}/cgroup").read_text() and _is_init(process.pid):
                    return process.pid
            except OSError:
                continue
    raise AssertionError(f"no process of {sandbox}")


def _is_init(pid: int) -> bool:
    """Its innermost id (proc(5), NSpid)."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [one for one in status.splitlines() if one.startswith("NSpid:")]
    return line.split()[-1] == "1"


def _followed(home: Path) -> None:
    """All four processes have lines of the operation, with its trace; none has the secret."""
    begins = {
        "up-control.log": ("sandbox.create", "placed on n-"),
        "up-edge.log": ("node.create",),
        "driver-container.log": ("driver.create",),
    }
    for file, messages in begins.items():
        assert b"hunter2" not in (home / file).read_bytes()
        lines = [line for line in logged(home / file) if line.get("op") == "followed"]
        for message in messages:
            found = [line for line in lines if line["message"].startswith(message)]
            assert found, (file, message, lines)
            assert all(line["trace"] == TRACE[3:35] for line in found)
