"""`$SRV` answers, field by field beside those of nats-py's own service, and what the `nats` CLI needs."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import nats
import nats.micro
import nkeys
import pytest
from nats.micro.request import Request
from nats.micro.service import EndpointConfig, ServiceConfig, ServiceInfo, ServicePing, ServiceStats

from dsec.bus import ids
from dsec.bus.errors import SpecError
from dsec.bus.handlers import ok, serving_internal
from dsec.bus.home import Home
from dsec.bus.membership import member
from dsec.bus.micro import Service
from dsec.bus.nats import context as natscontext
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Received
from tests.wire.support import until

OURS = Service("ours", "id1", "answers", {"node": "n-a"})
TYPES = {str: "text", int: "number", list: "list", dict: "object", type(None): "null"}


def shape(value: dict[str, Any]) -> dict[str, Any]:
    """Keys with the kind of their values, endpoints looked into."""
    told: dict[str, Any] = {key: TYPES[type(one)] for key, one in value.items()}
    return told | {"endpoints": [shape(one) for one in value.get("endpoints", [])]}


async def ask(wire: Wire, subject: str) -> dict[str, Any]:
    return dict(json.loads((await wire.request(subject, b"", timeout=2)).data))


async def echo(message: Received) -> bytes:
    if message.data == b"bad":
        raise SpecError("this is bad")
    return ok({"echo": len(message.data)})


async def echo_theirs(request: Request) -> None:
    await request.respond(request.data)


async def test_answers_have_the_fields_of_nats_own_service(tmp_path: Path) -> None:
    async with (
        Broker.running(tmp_path) as broker,
        Wire.connect(broker.url, Credentials.new(Role.OPERATOR)) as wire,
        serving_internal(wire, "echo.ours", echo, queue="q"),
        member(wire, OURS),
    ):
        client = await nats.connect(broker.url)
        theirs = await nats.micro.add_service(
            client, ServiceConfig(name="theirs", version="1.0.0", description="x", metadata={"node": "n-a"})
        )
        await theirs.add_endpoint(
            EndpointConfig(name="echo", subject="echo.theirs", handler=echo_theirs, metadata={})
        )
        await client.request("echo.theirs", b"1")
        await wire.request("echo.ours", b"1", timeout=2)
        for verb in ("PING", "INFO", "STATS"):
            ours, other = await ask(wire, f"$SRV.{verb}.ours.id1"), await ask(wire, f"$SRV.{verb}.theirs")
            assert shape(ours) == shape(other)
            assert ours["type"] == other["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
        await theirs.stop()
        await client.close()


async def test_every_scope_of_a_question_is_answered_and_others_are_not(tmp_path: Path) -> None:
    async with (
        Broker.running(tmp_path) as broker,
        Wire.connect(broker.url, Credentials.new(Role.OPERATOR)) as wire,
        member(wire, OURS),
        member(wire, Service("ours", "id2")),
    ):
        found: list[str] = []
        await wire.subscribe("told", lambda message: found.append(json.loads(message.data)["id"]))
        for subject, expected in (
            ("$SRV.PING", ["id1", "id2"]),
            ("$SRV.INFO.ours", ["id1", "id2"]),
            ("$SRV.STATS.ours.id2", ["id2"]),
        ):
            found.clear()
            await wire.publish(subject, b"", "told")
            await until(lambda: len(found) >= len(expected), within=10)  # noqa: B023 - awaited in this turn
            assert sorted(found) == expected
        with pytest.raises(Exception, match="nobody answers"):
            await wire.request("$SRV.PING.ours.id3", b"", timeout=1)


async def test_stats_count_requests_errors_and_time(tmp_path: Path) -> None:
    async with (
        Broker.running(tmp_path) as broker,
        Wire.connect(broker.url, Credentials.new(Role.OPERATOR)) as wire,
        serving_internal(wire, "echo.*.ours", echo, queue="q"),
        member(wire, OURS),
    ):
        for body in (b"1", b"22", b"bad"):
            await wire.request("echo.x.ours", body, timeout=2)
        told = await ask(wire, "$SRV.STATS.ours.id1")
        [endpoint] = told["endpoints"]
        assert (endpoint["name"], endpoint["subject"], endpoint["queue_group"]) == (
            "echo-ours",
            "echo.*.ours",
            "q",
        )
        assert (endpoint["num_requests"], endpoint["num_errors"]) == (3, 1)
        assert endpoint["last_error"] == "bad_request: this is bad"
        assert endpoint["average_processing_time"] == endpoint["processing_time"] // 3 > 0
        parsed = ServiceStats.from_dict(told)
        assert abs((parsed.started - OURS.started.replace(tzinfo=None)).total_seconds()) < 0.01
        assert ServicePing.from_dict(await ask(wire, "$SRV.PING.ours")).version == OURS.version
        assert ServiceInfo.from_dict(await ask(wire, "$SRV.INFO.ours")).metadata == {"node": "n-a"}


def test_names_and_versions_are_what_the_record_allows() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", OURS.version)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", ids.driver_on("n-a", "container"))


def test_the_context_for_the_nats_cli_has_the_documented_keys_and_a_key_of_the_operator(
    tmp_path: Path,
) -> None:
    home, operator = Home(tmp_path), Credentials.new(Role.OPERATOR)
    home.credentials.mkdir()
    path = natscontext.write(home, "nats://127.0.0.1:4222", operator)
    assert path == tmp_path / "nats" / "context" / "dsec.json"
    assert (tmp_path / "nats" / "context.txt").read_text() == "dsec"
    context = json.loads(path.read_text())
    assert set(context) == {
        *("description", "url", "token", "user", "password", "creds", "nkey", "cert", "key", "ca", "nsc"),
        *("jetstream_domain", "jetstream_api_prefix", "jetstream_event_prefix", "inbox_prefix"),
    }
    assert context["url"] == "nats://127.0.0.1:4222"
    assert context["inbox_prefix"] == "_INBOX.operator"
    seed = Path(context["nkey"])
    assert stat.S_IMODE(seed.stat().st_mode) == stat.S_IMODE(path.stat().st_mode) == 0o600
    key = nkeys.from_seed(bytearray(seed.read_text().strip().encode()))
    assert key.public_key.decode() == operator.public
