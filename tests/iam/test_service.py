"""Delegation over a real broker: credentials that work, rights that the broker enforces, and revocation."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dsec.bus import ids, subjects
from dsec.bus.errors import (
    Conflict,
    GoneError,
    NodeLost,
    PolicyError,
    QuotaExceeded,
    SpecError,
    Unauthenticated,
)
from dsec.bus.host import Context
from dsec.bus.messages import Audit
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.directget import DirectGet, Stored
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Received
from dsec.plugins.iam import Iam
from dsec.plugins.iam.ending import WITHIN
from dsec.sdk import Client
from dsec.sdk.link import Link
from dsec.sdk.projects import Principals
from tests.wire.support import Stack, until

SANDBOX = ids.sandbox_on("n-a")


@pytest_asyncio.fixture(loop_scope="session")
async def admin(stack: Stack) -> AsyncIterator[Client]:
    async with Client(stack.url, stack.credentials("u-admin")) as client:
        yield client


@contextlib.asynccontextmanager
async def lead(stack: Stack, admin: Client, project: str, **quota: int) -> AsyncIterator[Client]:
    """A principal that may delegate, in a project of its own."""
    await admin.projects.create(project, quota=quota)
    who = await admin.principals.create(
        "u-" + project[2:], project=project, rights=("iam", "sandbox", "exec")
    )
    async with Client(stack.url, who) as client:
        yield client


async def test_an_agent_delegates_on_and_the_credentials_work(stack: Stack, admin: Client) -> None:
    async with lead(stack, admin, "p-one", sandboxes=10) as client:
        made = await client.projects.create("p-one-a", quota={"sandboxes": 3})
        assert (made.parent, made.quota.sandboxes) == ("p-one", 3)
        worker = await client.principals.create("u-worker", project="p-one-a")
        async with Wire.connect(stack.url, worker) as wire:
            assert wire.inbox == "_INBOX.u-worker"
            with pytest.raises(NodeLost):
                await wire.request(_exec("p-one-a", "u-worker"), b"{}", timeout=2)
        assert [one.project async for one in client.projects.list()] == ["p-one", "p-one-a"]
        assert [one.principal async for one in client.principals.list(project="p-one-a")] == ["u-worker"]
        changed = await client.projects.set_quota("p-one-a", {"sandboxes": 2})
        assert changed.quota.sandboxes == 2


async def test_the_broker_refuses_what_a_principal_has_no_right_to(stack: Stack, admin: Client) -> None:
    async with lead(stack, admin, "p-two") as client:
        reader = await client.principals.create("u-two-r", rights=("sandbox",))
    async with Wire.connect(stack.url, reader) as wire:
        for subject in (
            _exec("p-two", "u-two-r"),
            subjects.request("iam", "project", "p-two", "u-two-r"),
            subjects.request("iam", "revoke", "p-default", "u-admin"),
            "quota.bounds",
            "$KV.quota.p-two",
            "$SYS.REQ.SERVER.PING.CONNZ",
            "$SYS.REQ.ACCOUNT.PING.CONNZ",
        ):
            with pytest.raises(PolicyError, match="not allowed to publish"):
                await wire.request(subject, b"{}", timeout=5)


async def test_errors_are_typed_and_name_the_field(stack: Stack, admin: Client) -> None:
    async with lead(stack, admin, "p-three", sandboxes=5) as client:
        with pytest.raises(QuotaExceeded, match="p-three") as quota:
            await client.projects.create("p-three-a", quota={"sandboxes": 6})
        with pytest.raises(SpecError) as unknown:
            await client.projects.create("p-three-a", quota={"sandbox": 6})
        with pytest.raises(SpecError) as nan:
            await client.projects.create("p-three-a", quota={"cpu": float("nan")})
        with pytest.raises(SpecError) as name:
            await client.projects.create("p-three.a")
        with pytest.raises(PolicyError) as rights:
            await client.principals.create("u-three-a", rights=("file",))
        with pytest.raises(Conflict) as taken:
            await client.principals.create("u-admin")
        with pytest.raises(GoneError) as parent:
            await client.projects.create("p-three-a", parent="p-default")
        with pytest.raises(GoneError) as stranger:
            await client.principals.revoke("u-admin")
    caught = (quota, unknown, nan, name, rights, taken, parent, stranger)
    assert [one.value.field for one in caught] == [
        *("quota.sandboxes", "quota.sandbox", "quota.cpu", "project"),
        *("rights", "principal", "parent", "principal"),
    ]


async def test_a_revoked_principal_is_refused_and_its_connections_end(stack: Stack, admin: Client) -> None:
    async with lead(stack, admin, "p-four") as client:
        agent = await client.principals.create("u-four-a", rights=("iam", "sandbox"))
        async with Wire.connect(stack.url, agent) as wire, Wire.connect(stack.url, agent) as other:
            sub = Principals(Link(wire, "p-four", "u-four-a"))
            helper = await sub.create("u-four-b")
            async with Wire.connect(stack.url, helper) as third:
                started = time.monotonic()
                assert set(await client.principals.revoke("u-four-a")) == {"u-four-a", "u-four-b"}
                with pytest.raises(PolicyError):
                    await sub.create("u-four-x")
                connections = (wire, other, third)
                await until(lambda: not any(one.connected for one in connections), within=WITHIN)
                assert time.monotonic() - started < WITHIN
                await asyncio.sleep(0.5)
                assert not any(one.connected for one in connections)
    for who in (agent, helper):
        with pytest.raises(Unauthenticated):
            async with Wire.connect(stack.url, who):
                pass


async def test_a_forged_reply_subject_makes_iam_speak_for_nobody(stack: Stack, admin: Client) -> None:
    async with lead(stack, admin, "p-five"):
        pass
    who = await admin.principals.create("u-five-x", project="p-five", rights=("iam",))
    async with stack.wire("u-admin") as victim, Wire.connect(stack.url, who) as forger:
        got: list[Received] = []
        await victim.subscribe(victim.inbox + ".x", got.append)
        subject = subjects.request("iam", "projects", "p-five", "u-five-x")
        await forger.publish(subject, b'{"op":"o","deadline":9999999999999}', reply=victim.inbox + ".x")
        await asyncio.sleep(0.3)
        assert not got
    async with stack.wire("operator") as operator, DirectGet.running(operator) as reader:
        entry = await reader.last("AUDIT", "audit.iam.projects.p-five")
    assert entry is not None
    assert Audit.model_validate_json(entry.data).outcome == "forged_reply"


async def trail(reader: DirectGet) -> list[Stored]:
    """What iam has audited of `p-six`."""
    return (await reader.batch("AUDIT", "audit.iam.*.p-six", 0, count=100, max_bytes=1 << 20)).messages


async def test_changes_and_denials_are_audited_without_any_secret(stack: Stack, admin: Client) -> None:
    async with lead(stack, admin, "p-six") as client:
        made = await client.principals.create("u-six-a")
        with pytest.raises(GoneError):
            await client.projects.set_quota("p-one", {})
    async with stack.wire("operator") as operator, DirectGet.running(operator) as reader:
        async with asyncio.timeout(5):  # the trail is written after the answer
            while len(batch := await trail(reader)) < 2:  # noqa: ASYNC110 - a stream that is read tells no change
                await asyncio.sleep(0.05)
    entries = [Audit.model_validate_json(stored.data) for stored in batch]
    assert [(one.op, one.principal, one.outcome, one.target) for one in entries] == [
        ("iam.principal", "u-six", "ok", "u-six-a"),
        ("iam.quota", "u-six", "gone", ""),
    ]
    assert made.seed not in b"".join(stored.data for stored in batch).decode()


async def test_a_repeated_request_makes_one_project_whichever_iam_answers(
    stack: Stack, admin: Client
) -> None:
    async with stack.wire("iam") as wire, Iam.running(wire, Context(stack.home.part("iam"))):
        made = await asyncio.gather(*(admin.projects.create("p-seven", key="seven") for _ in range(20)))
        assert {one.project for one in made} == {"p-seven"}
        with pytest.raises(Conflict):
            await admin.projects.create("p-seven", key="another")


@pytest.mark.kill
async def test_of_two_more_iam_processes_one_is_killed_and_nothing_acknowledged_is_lost(
    stack: Stack, admin: Client
) -> None:
    async with _process(stack) as doomed, _process(stack):
        await asyncio.sleep(0.5)
        names = [f"u-load-{number}" for number in range(60)]

        async def make(number: int) -> Credentials:
            if number == 30:
                os.kill(doomed, signal.SIGKILL)
            return await admin.principals.create(names[number], key=f"load-{number}")

        made: list[Credentials | BaseException] = []
        for at in range(0, 60, 6):
            made += await asyncio.gather(*(make(at + n) for n in range(6)), return_exceptions=True)
    known = {one.principal async for one in admin.principals.list()}
    good = [one for one in made if isinstance(one, Credentials)]
    assert {one.principal for one in good} <= known
    assert len(good) >= 54
    for who in good[::10]:
        async with Wire.connect(stack.url, who):
            pass


@contextlib.asynccontextmanager
async def _process(stack: Stack) -> AsyncIterator[int]:
    """One more iam over the same home, in a process of its own; its id."""
    path = Path(__file__).parent.parent / "quotas" / "process.py"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(path), "iam", stack.url, str(stack.home.path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    try:
        yield process.pid
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await process.communicate()


def _exec(project: str, principal: str) -> str:
    return subjects.request("exec", "start", project, principal, SANDBOX)
