"""compose/: what stands in it fits together and is what the program takes; no daemon runs it here."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsec.bus.home import Home
from dsec.bus.nats.broker import binary
from dsec.bus.nats.servers import Servers, of
from dsec.sdk.cli import main, parser
from dsec.sdk.cli.up import Options
from dsec.sdk.testing import platform
from tests.cluster.trio import free_ports
from tests.docs.documents import finished, shell

COMPOSE = Path(__file__).parent.parent.parent / "compose"
MODEL: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = MODEL["services"]
BROKERS = ("nats-1", "nats-2", "nats-3")
PARTS = ("control-1", "control-2", "edge")


def mounts(service: str) -> list[tuple[str, str]]:
    """Source and target of each volume."""
    told = SERVICES[service].get("volumes", ())
    return [
        (one["source"], one["target"]) if isinstance(one, dict) else tuple(one.split(":")[:2]) for one in told
    ]


def test_there_is_what_a_cluster_needs() -> None:
    assert set(SERVICES) == {"set-up", *BROKERS, *PARTS, "prometheus", "grafana"}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_names_only_what_is_there(service: str) -> None:
    for source, target in mounts(service):
        assert target.startswith("/")
        if source.startswith("."):
            assert (COMPOSE / source).exists()
        elif not source.startswith("/"):
            assert source in MODEL["volumes"]
    assert set(SERVICES[service].get("depends_on", ())) <= set(SERVICES)
    assert set(SERVICES[service]["networks"]) <= set(MODEL["networks"])


@pytest.mark.parametrize("service", sorted(set(SERVICES) - {"set-up"}))
def test_what_runs_for_long_is_restarted_and_tells_how_it_is(service: str) -> None:
    assert SERVICES[service]["restart"] == "always"
    assert SERVICES[service]["healthcheck"]["test"][0] == "CMD"


def test_only_loopback_is_published() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


async def test_the_brokers_are_of_the_version_that_is_tested() -> None:
    process = await asyncio.create_subprocess_exec(str(binary()), "--version", stdout=asyncio.subprocess.PIPE)
    said = (await process.communicate())[0].decode()
    version = re.search(r"v(\d+\.\d+\.\d+)", said)
    assert version
    assert {SERVICES[name]["image"] for name in BROKERS} == {f"nats:{version[1]}-alpine"}


@pytest.mark.parametrize("service", PARTS)
def test_the_parts_are_started_as_the_program_takes_it(service: str, tmp_path: Path) -> None:
    words = SERVICES[service]["command"]
    args = parser(["up"]).parse_args(words)
    options = Options(Home(tmp_path), args.only, args.node, args.port, args.broker)
    servers = Servers.parse(options.broker)
    assert [url.split("/")[2].split(":")[0] for url in servers.urls] == list(BROKERS)
    assert servers.tls
    assert ("ca", "/ca") in mounts(service)
    assert (service, "/var/lib/dsec") in mounts(service)


def test_every_part_is_scraped() -> None:
    (group,) = yaml.safe_load((COMPOSE / "prometheus-targets.yml").read_text())
    assert group["targets"] == [f"{service}:9464" for service in PARTS]
    assert all("--metrics=0.0.0.0:9464" in SERVICES[service]["command"] for service in PARTS)


def set_up(root: Path) -> list[str]:
    """The lines of the set-up, with its directories below `root`."""
    (script,) = SERVICES["set-up"]["command"]
    for _, target in mounts("set-up"):
        script = re.sub(rf"(?<![\w.]){target}(?=[\s/])", str(root) + target, script)
    return [str(line) for line in script.replace("\\\n", "").splitlines()]


async def test_the_set_up_makes_servers_and_two_homes_of_one_platform(tmp_path: Path) -> None:
    """Its script is run as it stands, but that each server listens to loopback, on a port of its own."""
    _, first, *rest = set_up(tmp_path)
    config = shlex.split(first)
    ports = free_ports(6)
    for name, port, routes in zip(BROKERS, ports[:3], ports[3:], strict=True):
        config[config.index(name)] = f"{name}=127.0.0.1:{port}:{routes}"
    at = config.index("--seen-at")
    del config[at : at + 2]
    for _, target in mounts("set-up"):
        (tmp_path / target.lstrip("/")).mkdir(mode=0o700)
    assert config[0] == "dsec"
    assert await asyncio.to_thread(main, [*config[1:], "--listen", "127.0.0.1", "--monitor", "0"]) == 0
    for line in [*rest[:1], *rest]:  # half a set-up is finished by the next
        await finished(await shell(line, tmp_path))
    servers = [await started(tmp_path / "brokers" / name) for name in BROKERS]
    ca = tmp_path / "ca" / "ca.pem"
    try:
        await both_serve(tmp_path, str(of([("127.0.0.1", port) for port in ports[:3]], ca)))
    finally:
        for server in servers:
            server.kill()
            await server.wait()


async def started(directory: Path) -> asyncio.subprocess.Process:
    with (directory / "server.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            str(binary()), "-c", str(directory / "nats.json"), stderr=log
        )


async def both_serve(root: Path, url: str) -> None:
    """Two control planes with homes of their own; when one ends, the other goes on alone."""
    options = ["--broker", url]
    async with platform.running(root / "control-1", only="control", options=options) as first:
        async with platform.running(root / "control-2", only="control", options=options) as second:
            for part in (first, second):
                async with part.client() as client:
                    assert [one async for one in client.list()] == []
        async with first.client() as client:
            assert [one async for one in client.list()] == []
