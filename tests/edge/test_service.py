"""What a real edge answers, refuses and audits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from dsec.bus import ids, subjects
from dsec.bus.errors import (
    DeadlineExceeded,
    DsecError,
    NoSuchImage,
    NoSuchSandbox,
    SpecError,
    Unsupported,
)
from dsec.bus.handlers import result
from dsec.bus.messages import NodeCreate, State
from dsec.bus.nats.wire import Wire
from dsec.bus.spec import Spec
from dsec.sdk import Client, Sandbox
from dsec.sdk.testing.traces import cgroups, paths
from tests.edge.support import NODE, Site, eventually, stored, traces

pytestmark = pytest.mark.node
PROJECT = "p-default"


@pytest.fixture
async def tenant(site: Site) -> AsyncIterator[Wire]:
    async with site.stack.wire("u-admin") as wire:
        yield wire


async def ask(wire: Wire, verb: str, sandbox: str, *, noun: str = "sandbox", **body: Any) -> Any:
    envelope = {"op": ids.new_operation(), "deadline": int(time.time() * 1000) + 5000, **body}
    subject = subjects.request(noun, verb, PROJECT, "u-admin", sandbox, ids.exec_of("any"))
    return result((await wire.request(subject, orjson.dumps(envelope), timeout=10)).data)


async def audited(site: Site, outcome: str, target: str | None, *verbs: str) -> None:
    """Return once the trail has that outcome of one of `verbs`; it is written after the answer."""

    async def is_there() -> bool:
        trail = [one for verb in verbs for one in await stored(site.stack, "AUDIT", f"audit.edge.{verb}.>")]
        entries = [orjson.loads(one.data) for one in trail]
        return any(one["outcome"] == outcome and target in {None, one["target"]} for one in entries)

    await eventually(is_there)


async def test_another_projects_sandbox_does_not_exist_and_the_attempt_is_audited(
    site: Site, client: Client, sandbox: Sandbox
) -> None:
    other = site.stack.principal("p-other", "u-other-" + ids.tail(6))
    async with site.client(other) as stranger:
        with pytest.raises(NoSuchSandbox) as foreign:
            await (await stranger.attach(sandbox.id)).run(["true"])
        never = ids.sandbox_on(NODE)
        with pytest.raises(NoSuchSandbox) as unknown:
            await (await stranger.attach(never)).run(["true"])
    assert foreign.value.message.replace(sandbox.id, "") == unknown.value.message.replace(never, "")
    await audited(site, "no_such_sandbox", sandbox.id, "start", "stat")


async def test_a_late_request_does_nothing(client: Client, tenant: Wire, sandbox: Sandbox) -> None:
    with pytest.raises(DeadlineExceeded):
        await ask(tenant, "destroy", sandbox.id, deadline=int(time.time() * 1000) - 1)
    assert (await sandbox.run(["true"])).code == 0


async def test_a_paused_sandbox_stands_still_and_goes_on(
    client: Client, tenant: Wire, sandbox: Sandbox
) -> None:
    running = await sandbox.start("while :; do echo x; sleep 0.05; done", timeout=20)
    for _ in range(2):
        assert (await ask(tenant, "pause", sandbox.id, resume_on_request=False))["state"] == State.PAUSED
    with pytest.raises(SpecError) as caught:
        await sandbox.run(["true"])
    assert caught.value.field == "state"
    for _ in range(2):
        assert (await ask(tenant, "resume", sandbox.id))["state"] == State.RUNNING
    assert (await sandbox.run(["true"])).code == 0
    await running.kill()


async def test_a_renewed_sandbox_expires_later(client: Client, tenant: Wire, sandbox: Sandbox) -> None:
    before = await ask(tenant, "stat", sandbox.id)
    after = await ask(tenant, "renew", sandbox.id, ttl=6 * 86400)
    assert after["expires"] > before["expires"]


async def test_mutating_calls_are_audited_with_their_outcome(
    site: Site, client: Client, tenant: Wire, sandbox: Sandbox
) -> None:
    with pytest.raises(DsecError):
        await ask(tenant, "renew", sandbox.id, ttl=-1)
    await sandbox.destroy()
    await audited(site, "ok", sandbox.id, "create")
    await audited(site, "ok", sandbox.id, "destroy")
    await audited(site, "bad_request", None, "renew")


async def test_a_destroyed_sandbox_leaves_nothing_and_may_be_destroyed_again(
    site: Site, client: Client, tenant: Wire, sandbox: Sandbox
) -> None:
    await sandbox.run("sleep 99 & setsid sleep 99 & echo x >/file")
    assert traces(site, sandbox.id)
    await ask(tenant, "destroy", sandbox.id)
    assert traces(site, sandbox.id) == []
    await ask(tenant, "destroy", sandbox.id)
    with pytest.raises(NoSuchSandbox):
        await ask(tenant, "stat", sandbox.id)


async def test_a_create_that_fails_leaves_nothing(site: Site, client: Client) -> None:
    before = _everything(site)
    for _ in range(5):
        with pytest.raises(NoSuchImage):
            await client.create(backend="container", image="no-such-image")
    assert _everything(site) == before


def _everything(site: Site) -> set[str]:
    """All paths and mounts of the site."""
    root = site.home.parent
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(root) in line]
    kept = {line for line in mounts if "/mnt/" not in line}  # layers stay mounted for a while
    return kept | {path for path in paths(root) if "/mnt/" not in path}


async def test_one_order_makes_one_sandbox_however_often_it_comes(site: Site, client: Client) -> None:
    order = NodeCreate(
        op=ids.new_operation(),
        deadline=int(time.time() * 1000) + 20_000,
        project=PROJECT,
        principal="u-admin",
        sandbox=ids.sandbox_on(NODE),
        spec=Spec.model_validate({"image": "base"}),
    )
    async with site.stack.wire("core") as core, site.stack.wire("u-admin") as tenant:
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        await tenant.subscribe(tenant.inbox + ".orders.*", lambda message: answers.put_nowait(message.data))

        async def send(reply: str) -> None:
            await core.publish(subjects.node_create(NODE), order.model_dump_json().encode(), reply)

        for number in range(3):
            await send(f"{tenant.inbox}.orders.{number}")
        first = await answers.get()
        await send(f"{tenant.inbox}.orders.3")
        assert [await answers.get() for _ in range(3)] == [first] * 3
        assert result(first)["sandbox"] == order.sandbox
        await send("_INBOX.u-other.orders.0")
        await asyncio.sleep(0.3)
        assert answers.empty()


async def test_a_limit_that_cannot_be_enforced_is_refused(client: Client) -> None:
    with pytest.raises(Unsupported) as caught:
        await client.create(backend="container", image="base", limits={"disk": 1 << 30})
    assert caught.value.field == "limits.disk"


async def test_secrets_reach_commands_and_no_stored_message(site: Site, client: Client) -> None:
    secret = "hidden-" + ids.tail(20)
    async with client.sandbox(backend="container", image="base", secrets={"TOKEN": secret}) as sandbox:
        assert (
            await sandbox.run("printf %s $TOKEN >/dev/null; test -n $TOKEN; echo ${#TOKEN}")
        ).stdout == "27\n"
    for stream, subject in (("EVENT", "event.>"), ("AUDIT", "audit.>"), ("KV_registry", "$KV.registry.>")):
        assert not any(secret.encode() in one.data for one in await stored(site.stack, stream, subject))


async def test_time_to_live_and_idleness_end_sandboxes(site: Site, client: Client) -> None:
    short = await client.create(backend="container", image="base", ttl=0.7)
    idle = await client.create(backend="container", image="base", idle_ttl=1.0)
    busy = await client.create(backend="container", image="base", idle_ttl=1.0)
    running = await busy.start("sleep 30", detach=True)

    async def ended() -> bool:
        return traces(site, short.id) == traces(site, idle.id) == []

    await eventually(ended, within=30)
    assert (await busy.stat()).state is State.RUNNING
    await running.kill()


async def test_a_dead_inside_is_a_failed_sandbox_that_keeps_its_record(
    site: Site, client: Client, sandbox: Sandbox
) -> None:
    running = await sandbox.start("sleep 99")
    found = cgroups(sandbox.id)
    assert found
    await _kill_inside(found)

    async def failed() -> bool:
        return (await sandbox.stat()).state is State.FAILED

    await eventually(failed)
    assert (await sandbox.stat()).failure is not None
    with pytest.raises(DsecError):
        await sandbox.run(["true"])
    assert (await running.wait()).signal == 9
    await sandbox.destroy()
    assert traces(site, sandbox.id) == []


async def _kill_inside(cgroups: list[str]) -> None:
    pids = set()
    for directory in cgroups:
        procs = Path(directory) / "cgroup.procs"
        if procs.exists():
            pids |= {int(line) for line in procs.read_text().split()}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # PID 1 takes the others with it
            os.kill(pid, signal.SIGKILL)
