"""`dsec up` as a process of its own: readiness, locks, halves, signals, and nothing left at its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from dsec.bus.errors import InfraError, MissingTool, SpecError
from dsec.bus.home import Home
from dsec.bus.host import PLUGINS, ending, load
from dsec.plugins.container.cgroups import Cgroups
from dsec.sdk.cli.up import Options
from dsec.sdk.testing import platform
from dsec.sdk.testing.plugin import add_base


@pytest_asyncio.fixture(loop_scope="session")
async def control(tmp_path: Path) -> AsyncIterator[platform.Part]:
    async with platform.running(tmp_path, only="control") as part:
        yield part


async def up(home: Path, *options: str) -> tuple[int, str]:
    """`dsec up` that is expected to end by itself: its exit code and what it told on standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dsec.sdk.cli", "up", "--home", str(home), *options),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def test_readiness_tells_all_that_a_client_needs(control: platform.Part) -> None:
    ready = control.ready
    assert ready["parts"] == ["iam", "core", "scheduler", "journal"]
    assert psutil.Process(ready["broker_pid"]).ppid() == ready["pid"] == control.process.pid
    assert stat.S_IMODE(Path(ready["credentials"]).stat().st_mode) == 0o600
    assert Home(Path(ready["home"])).ready() == ready
    async with control.client() as client:
        assert [one async for one in client.list()] == []


async def test_a_second_start_on_the_same_home_is_refused_and_the_first_goes_on(
    control: platform.Part,
) -> None:
    code, errors = await up(Path(control.ready["home"]))
    assert code == 2
    assert "already_running" in errors
    async with control.client() as client:
        assert [one async for one in client.list()] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly_and_no_process_is_left(
    tmp_path: Path, number: signal.Signals
) -> None:
    part = await platform.spawn(tmp_path, only="control")
    broker = psutil.Process(part.ready["broker_pid"])
    part.process.send_signal(number)
    assert await asyncio.wait_for(part.process.wait(), 10) == 0
    assert not broker.is_running()


@pytest.mark.kill
async def test_after_kill_9_no_broker_is_left_and_a_restart_keeps_address_and_identities(
    tmp_path: Path,
) -> None:
    part = await platform.spawn(tmp_path, only="control")
    broker, credentials = psutil.Process(part.ready["broker_pid"]), part.credentials.read_text()
    await part.kill()
    await asyncio.to_thread(psutil.wait_procs, [broker], 5)
    assert not broker.is_running()
    async with platform.running(tmp_path, only="control") as again:
        assert again.url == part.url
        assert again.credentials.read_text() == credentials


async def test_a_node_without_a_control_plane_or_credentials_is_refused(tmp_path: Path) -> None:
    code, errors = await up(tmp_path, "--only", "edge")
    assert code == 2
    assert "broker_down" in errors
    assert not (tmp_path / "nodes").exists()


async def test_a_home_that_cannot_be_written_is_typed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, errors = await up(tmp_path / "file" / "home", "--only", "control")
    assert code == 2
    assert "error: infra: home" in errors


@pytest.mark.parametrize("node", ["n-a.b", "a", "n-*", "n-"])
async def test_a_node_id_that_is_none_is_refused(tmp_path: Path, node: str) -> None:
    code, errors = await up(tmp_path, "--node", node)
    assert code == 2
    assert "bad_id" in errors


@pytest.mark.parametrize(("broker", "field"), [("127.0.0.1:4222", "broker"), ("nats://127.0.0.1", "port")])
def test_a_broker_elsewhere_is_a_url_and_has_its_own_port(tmp_path: Path, broker: str, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        Options(Home(tmp_path), broker=broker, port=4222)
    assert caught.value.field == field


def test_a_missing_plugin_is_told_with_what_there_is() -> None:
    with pytest.raises(MissingTool, match="core"):
        load(PLUGINS, "nothing")


async def test_a_stage_that_does_not_end_is_cut_off_and_the_others_still_end() -> None:
    ended: list[str] = []

    @contextlib.asynccontextmanager
    async def stage(name: str, seconds: float) -> AsyncIterator[str]:
        try:
            yield name
        finally:
            await asyncio.sleep(seconds)
            ended.append(name)

    with pytest.raises(InfraError, match="hangs did not end"):
        async with (
            ending(stage("outer", 0), "outer", within=10),
            ending(stage("hangs", 60), "hangs", within=0.05),
            ending(stage("inner", 0), "inner", within=10),
        ):
            pass
    assert ended == ["inner", "outer"]


@pytest.mark.node
async def test_everything_in_one_process_drains_its_node_at_the_end(tmp_path: Path, base_file: Path) -> None:
    await add_base(tmp_path, base_file)
    async with platform.running(tmp_path) as part, part.client() as client:
        sandboxes = [await client.create(image="base") for _ in range(3)]
        for sandbox in sandboxes:
            assert (await sandbox.run("echo hi")).stdout == "hi\n"
    mounts = Path("/proc/self/mounts").read_text()
    assert str(tmp_path) not in mounts
    left = Path("/proc/self/mountinfo").read_text() + "\n".join(
        " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])
    )
    assert not [one.id for one in sandboxes if one.id in left]


@pytest.mark.node
async def test_a_node_that_ends_alone_leaves_its_sandboxes_to_its_successor(
    tmp_path: Path, base_file: Path
) -> None:
    await add_base(tmp_path, base_file)
    async with platform.running(tmp_path, only="control") as control, control.client() as client:
        async with platform.running(tmp_path, only="edge"):
            sandbox = await client.create(image="base")
            await sandbox.run("echo kept > /tmp/f")
        async with platform.running(tmp_path, only="edge"):
            assert (await sandbox.run("cat /tmp/f")).stdout == "kept\n"
            await sandbox.destroy()


@pytest.mark.node
async def test_no_control_group_is_left_of_a_node_that_had_no_sandbox(tmp_path: Path) -> None:
    def groups(node: str) -> list[Path]:
        mine = Cgroups.here(Home(tmp_path).driver(node, "container"))
        return [found for root in mine.layout.everywhere if (found := root / mine.parent).exists()]

    async with platform.running(tmp_path) as part:
        assert groups(part.ready["node"])
    assert not groups(part.ready["node"])
