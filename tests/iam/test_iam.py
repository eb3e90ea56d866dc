"""iam on a real broker: who gets in, and what the broker then refuses."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dsec.bus import ids, subjects
from dsec.bus.errors import BadId, BrokerDown, Conflict, NodeLost, PolicyError, Unauthenticated
from dsec.bus.home import Home
from dsec.bus.host import Context
from dsec.bus.messages import Audit
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials, Role, new_seed
from dsec.bus.nats.directget import DirectGet
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Received
from dsec.plugins.iam import Iam
from tests.wire.support import Stack, answered_again, running_broker_with_iam, until

SANDBOX = "s-a-thesameinallruns0000"
MINE = subjects.request("exec", "start", "p-default", "u-admin", SANDBOX)


async def _refused(wire: Wire, subject: str) -> None:
    with pytest.raises(PolicyError, match="not allowed to publish"):
        await wire.request(subject, b"{}", timeout=30)


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.STREAM.LIST",
        "$JS.API.DIRECT.GET.EXEC",
        f"$KV.registry.p-default.n-a.{SANDBOX}",
        "node.create.n-a",
        "sched.place",
        "sched.veto",
        f"exec.stream.p-default.n-a.{SANDBOX}.e-abcd",
        f"event.running.p-default.n-a.{SANDBOX}",
        "audit.edge.create.p-default",
        "node.heartbeat.n-a",
        subjects.request("exec", "start", "p-other", "u-admin", SANDBOX),
        subjects.request("exec", "start", "p-default", "u-other", SANDBOX),
        "_INBOX.u-other.x.1",
        "_INBOX.core.x.1",
        "$SYS.REQ.USER.AUTH",
        "sandbox.create.p-default.u-admin.more",
    ],
)
async def test_a_tenant_is_refused_at_once_what_is_not_its_own(stack: Stack, subject: str) -> None:
    async with stack.wire("u-admin") as tenant:
        async with asyncio.timeout(15):
            await _refused(tenant, subject)


@pytest.mark.parametrize(
    "subject",
    [
        ">",
        "_INBOX.>",
        "_INBOX.*.>",
        "_INBOX.u-other.>",
        "exec.stream.>",
        "exec.stream.p-other.>",
        "event.>",
        "event.*.*.>",
        "sandbox.>",
        "exec.start.*.*.*.*",
        "$SYS.>",
        "$JS.API.>",
        "node.*.n-a",
        "audit.>",
    ],
)
async def test_a_tenant_may_not_listen_to_others(stack: Stack, subject: str) -> None:
    async with stack.wire("u-admin") as tenant:
        for queue in ("", "core"):
            with pytest.raises(PolicyError, match="not allowed to subscribe"):
                await tenant.subscribe(subject, lambda _: None, queue)


async def test_a_tenant_asks_its_node_and_listens_to_its_own_project(stack: Stack) -> None:
    async with stack.wire("u-admin") as tenant, stack.wire("n-a") as node:
        for subject in subjects.tenant_subscribe("p-default", "u-admin"):
            await tenant.subscribe(subject, lambda _: None)
        for subject in subjects.node_requests("n-a"):
            await node.subscribe(subject, _answer(node, b"done"))
        assert (await tenant.request(MINE, b"{}", timeout=2)).data == b"done"


async def test_a_request_to_a_node_that_is_away_is_node_lost(stack: Stack) -> None:
    async with stack.wire("u-admin") as tenant:
        with pytest.raises(NodeLost):
            await tenant.request(MINE, b"{}", timeout=30)


async def test_the_node_answers_a_create_that_core_forwards_and_nothing_else_in_that_inbox(
    stack: Stack,
) -> None:
    async with stack.wire("u-admin") as tenant, stack.wire("core") as core, stack.wire("n-a") as node:
        got: list[Received] = []
        await tenant.subscribe(tenant.inbox + ".spy.>", got.append)
        await core.subscribe("sandbox.create.*.*", _forward(core, "node.create.n-a"), "core")
        await node.subscribe("node.*.n-a", _answer(node, b"made", times=2))
        await tenant.publish("sandbox.create.p-default.u-admin", b"{}", reply=tenant.inbox + ".spy.1")
        await until(lambda: bool(got), within=10)
        await node.publish(tenant.inbox + ".spy.2", b"unasked")
        await asyncio.sleep(0.2)
        assert [message.data for message in got] == [b"made"]


async def test_a_forged_reply_subject_does_not_make_a_node_speak_for_the_forger(stack: Stack) -> None:
    """Nothing but an answer reaches an inbox; that the answer was asked for is for `check_reply` to see."""
    other = stack.principal("p-forger", "u-forger")
    async with stack.wire("u-admin") as victim, Wire.connect(stack.url, other) as forger:
        got: list[Received] = []
        await victim.subscribe(victim.inbox + ".x", got.append)
        await forger.publish(
            subjects.request("exec", "start", "p-forger", "u-forger", SANDBOX),
            b"{}",
            reply=victim.inbox + ".x",
        )
        await forger.publish(victim.inbox + ".x", b"straight")
        await asyncio.sleep(0.2)
        assert [m.data for m in got if m.data] == []


async def test_a_node_may_not_speak_for_another(stack: Stack) -> None:
    foreign = ids.sandbox_on("n-b")
    async with stack.wire("n-a") as node:
        for subject in (
            f"exec.stream.p-a.n-b.{foreign}.e-abcd",
            f"$KV.registry.p-a.n-b.{foreign}",
            "node.heartbeat.n-b",
            "$JS.API.DIRECT.GET.EXEC",
            f"$JS.API.DIRECT.GET.EXEC.exec.stream.p-a.n-b.{foreign}.e-abcd",
            "$JS.API.STREAM.PURGE.EXEC",
        ):
            await _refused(node, subject)
        with pytest.raises(PolicyError):
            await node.subscribe("node.*.n-b", lambda _: None)


async def test_a_node_stores_its_own_records_and_reads_them_back(stack: Stack) -> None:
    frame = f"exec.stream.p-a.n-a.{SANDBOX}.e-abcd"
    record = f"$KV.registry.p-a.n-a.{SANDBOX}"
    async with stack.wire("n-a") as node, DirectGet.running(node) as reader:
        for subject, stream in ((frame, "EXEC"), (record, "KV_registry")):
            stored = json.loads((await node.request(subject, b"body", timeout=2)).data)
            found = await reader.last(stream, subject)
            assert found is not None
            assert (found.sequence, found.data) == (stored["seq"], b"body")
    async with stack.wire("journal") as journal, DirectGet.running(journal) as reader:
        batch = await reader.batch("EXEC", frame, 0, count=10, max_bytes=1000)
        assert [message.data for message in batch.messages] == [b"body"]


async def test_the_operator_reads_and_cannot_change(stack: Stack) -> None:
    async with stack.wire("operator") as operator:
        streams = json.loads((await operator.request("$JS.API.STREAM.LIST", b"", timeout=2)).data)
        assert {s["config"]["name"] for s in streams["streams"]} >= {"EXEC", "EVENT", "AUDIT"}
        for subject in ("$JS.API.STREAM.DELETE.EXEC", "audit.edge.x.p-a", "node.create.n-a"):
            await _refused(operator, subject)


async def test_no_credentials_do_not_connect(stack: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.broker.port)
    await reader.readline()
    writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
    assert b"Authorization Violation" in await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    await writer.wait_closed()


async def test_a_seed_that_iam_does_not_know_is_refused_and_audited(stack: Stack) -> None:
    stranger = Credentials.new(Role.CORE)
    with pytest.raises(Unauthenticated, match="refused core"):
        async with Wire.connect(stack.url, stranger):
            pass
    async with stack.wire("operator") as operator, DirectGet.running(operator) as reader:
        last = None
        async with asyncio.timeout(5):
            while last is None:
                last = await reader.last("AUDIT", "audit.iam.connect.none")
    entry = Audit.model_validate_json(last.data)
    assert (entry.outcome, entry.target) == ("unauthenticated", stranger.public)


async def test_somebody_elses_public_key_with_another_signature_is_refused(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = stack.credentials("core").public
    thief = dataclasses.replace(stack.credentials("core"), seed=new_seed())
    connect = Wire._options

    def claiming(wire: Wire) -> dict[str, object]:
        original = wire._connection._connect_command
        monkeypatch.setattr(
            wire._connection,
            "_connect_command",
            lambda: original().replace(thief.public.encode(), known.encode()),
        )
        return connect(wire)

    monkeypatch.setattr(Wire, "_options", claiming)
    with pytest.raises(Unauthenticated):
        async with Wire.connect(stack.url, thief):
            pass


async def test_a_recorded_signature_opens_no_second_connection(stack: Stack) -> None:
    """The signature is over a nonce of the connection: what was sent on one is worth nothing on another."""
    recorded = None
    async with stack.wire("u-admin") as wire:
        recorded = wire._connection._connect_command()
        assert recorded.startswith(b"CONNECT")
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.broker.port)
    await reader.readline()
    writer.write(recorded + b"PING\r\n")
    assert b"Authorization Violation" in await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    await writer.wait_closed()


async def test_a_principal_made_meanwhile_connects_and_a_removed_one_does_not(stack: Stack) -> None:
    ann = stack.principal("p-lab", "u-ann")
    async with Wire.connect(stack.url, ann) as wire:
        assert wire.inbox == "_INBOX.u-ann"
    Iam.remove(stack.home, "u-ann")
    with pytest.raises(Unauthenticated):
        async with Wire.connect(stack.url, ann):
            pass


async def test_names_are_unique_in_an_installation_and_checked(stack: Stack) -> None:
    stack.principal("p-lab", "u-bob")
    with pytest.raises(Conflict, match="u-bob exists already"):
        stack.principal("p-other", "u-bob")
    for project, name in (("p-lab", "u-x.>"), ("lab", "u-x"), ("p-*", "u-x")):
        with pytest.raises(BadId):
            stack.principal(project, name)
    with pytest.raises(BadId):
        Iam.remove(stack.home, "../../u-x")


async def test_preparing_again_keeps_credentials_and_replaces_lost_ones(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = Iam.prepare(home, nodes=["n-a"])
    before = {owner: first.credentials(owner) for owner in ("core", "n-a", "u-admin", "iam")}
    first.path("core").unlink()
    second = Iam.prepare(home, nodes=["n-a", "n-b"])
    assert second.auth == first.auth
    assert second.credentials("u-admin") == before["u-admin"]
    assert second.credentials("core") != before["core"]
    assert second.credentials("n-b").node == "n-b"


@pytest.mark.kill
async def test_after_the_broker_was_killed_everybody_is_let_in_again(tmp_path: Path) -> None:
    async with (
        running_broker_with_iam(tmp_path) as stack,
        stack.wire("n-a") as node,
        stack.wire("u-admin") as tenant,
    ):
        for subject in subjects.node_requests("n-a"):
            await node.subscribe(subject, _answer(node, b"done"))
        os.kill(stack.broker.pid, signal.SIGKILL)
        await answered_again(tenant, MINE, within=5)


async def test_without_iam_nobody_connects_and_with_it_a_waiting_client_does(tmp_path: Path) -> None:
    home = Home(tmp_path)
    prepared = Iam.prepare(home)
    async with Broker.running(home.broker, auth=prepared.auth) as broker:
        core = prepared.credentials("core")
        with pytest.raises(BrokerDown):
            async with Wire.connect(broker.url, core, timeout=0.5):
                pass
        waiting = asyncio.create_task(_connects(broker.url, core))
        await asyncio.sleep(0.3)
        async with (
            Wire.connect(broker.url, prepared.credentials("iam")) as wire,
            Iam.running(wire, Context(home.part("iam"))),
        ):
            assert await waiting


def test_the_command_adds_a_principal_and_prints_where_its_credentials_are(tmp_path: Path) -> None:
    Iam.prepare(Home(tmp_path))
    command = [sys.executable, "-m", "dsec.plugins.iam", "--home", str(tmp_path), "add-principal"]
    done = subprocess.run([*command, "p-lab", "u-ann"], capture_output=True, text=True, check=True)
    assert Credentials.load(Path(done.stdout.strip())).project == "p-lab"
    again = subprocess.run([*command, "p-lab", "u-ann"], capture_output=True, text=True, check=False)
    assert (again.returncode, "exists already" in again.stderr) == (1, True)


async def _connects(url: str, credentials: Credentials) -> bool:
    async with Wire.connect(url, credentials, timeout=15) as wire:
        return wire.connected


TASKS: set[asyncio.Task[None]] = set()


def _publishing(wire: Wire, subject: str, data: bytes, reply: str = "") -> None:
    task = asyncio.create_task(wire.publish(subject, data, reply))
    TASKS.add(task)
    task.add_done_callback(TASKS.discard)


class _answer:  # noqa: N801 - reads as a verb where it is used
    def __init__(self, wire: Wire, data: bytes, times: int = 1) -> None:
        self._wire, self._data, self._times = wire, data, times

    def __call__(self, message: Received) -> None:
        for _ in range(self._times):
            _publishing(self._wire, message.reply, self._data)


class _forward:  # noqa: N801
    def __init__(self, wire: Wire, to: str) -> None:
        self._wire, self._to = wire, to

    def __call__(self, message: Received) -> None:
        _publishing(self._wire, self._to, message.data, message.reply)
