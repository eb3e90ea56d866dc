"""What a tenant may not do on a whole platform: each attempt is typed, leaves nothing, and is audited."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from dsec.bus import subjects
from dsec.bus.errors import DeadlineExceeded, DsecError, NoSuchSandbox, PolicyError, SpecError
from dsec.bus.handlers import result
from dsec.bus.home import Home
from dsec.bus.ids import new_operation
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam import Iam
from dsec.sdk import Client, Sandbox
from dsec.sdk.testing.platform import Part

pytestmark = pytest.mark.node


def body(**fields: Any) -> bytes:
    return orjson.dumps({"op": new_operation(), "deadline": int((time.time() + 10) * 1000), **fields})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def mallory(live: Part, home: Path) -> AsyncIterator[Wire]:
    """A principal of another project, on a bare wire."""
    credentials = await asyncio.to_thread(Iam.create_principal, Home(home), "p-other", "u-mallory")
    async with Wire.connect(live.url, credentials, "mallory") as wire:
        yield wire


async def audited(live: Part, home: Path, subject: str, outcome: str, within: float = 5.0) -> dict[str, Any]:
    """The newest audit record on `subject` with that outcome."""
    credentials = await asyncio.to_thread(Credentials.load, Home(home).credentials / "operator.json")
    async with Wire.connect(live.url, credentials, "auditor") as wire, asyncio.timeout(within):
        while True:
            found = [one for one in await _records(wire, subject) if one["outcome"] == outcome]
            if found:
                return found[-1]
            await asyncio.sleep(0.1)


async def _records(wire: Wire, subject: str) -> list[dict[str, Any]]:
    request = orjson.dumps({"last_by_subj": subject})
    answer = await wire.request("$JS.API.DIRECT.GET.AUDIT", request, timeout=5)
    return [orjson.loads(answer.data)] if answer.data else []


async def test_another_projects_sandbox_looks_as_if_it_did_not_exist(
    live: Part, home: Path, mallory: Wire, sandbox: Sandbox
) -> None:
    for verb in ("stat", "destroy"):
        subject = subjects.request("sandbox", verb, "p-other", "u-mallory", sandbox.id)
        with pytest.raises(NoSuchSandbox):
            result((await mallory.request(subject, body(), timeout=5)).data)
    assert (await sandbox.run(["true"])).ok
    record = await audited(live, home, "audit.edge.destroy.p-other", "no_such_sandbox")
    assert record["principal"] == "u-mallory"


async def test_a_forged_reply_subject_gets_no_answer_and_is_audited(
    live: Part, home: Path, mallory: Wire, client: Client
) -> None:
    before = {record.sandbox async for record in client.list()}
    create = subjects.request("sandbox", "create", "p-other", "u-mallory")
    order = body(spec={"image": "base"})
    await mallory.publish(create, order, reply=f"node.create.{live.ready['node']}")
    record = await audited(live, home, "audit.core.create.p-other", "forged_reply")
    assert record["principal"] == "u-mallory"
    assert {one.sandbox async for one in client.list()} == before


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.STREAM.LIST",
        "$JS.API.STREAM.DELETE.AUDIT",
        "$KV.registry.p-default.n-x.s-x",
        "node.create.n-x",
        "sched.place",
        "event.sandbox.p-other.n-x.s-x",
        "audit.core.create.p-other",
        "sandbox.list.p-default.u-admin",
        "sandbox.list.p-other.u-admin",
    ],
)
async def test_a_publish_outside_the_rights_is_refused(mallory: Wire, subject: str) -> None:
    started = time.monotonic()
    with pytest.raises(PolicyError):
        await mallory.request(subject, b"{}", timeout=30)
    assert time.monotonic() - started < 15


async def test_an_expired_deadline_is_refused_and_nothing_is_done(mallory: Wire) -> None:
    create = subjects.request("sandbox", "create", "p-other", "u-mallory")
    late = body(spec={"image": "base"}, deadline=int(time.time() * 1000) - 1000)
    with pytest.raises(DeadlineExceeded) as caught:
        result((await mallory.request(create, late, timeout=5)).data)
    assert caught.value.field == "deadline"
    listing = subjects.request("sandbox", "list", "p-other", "u-mallory")
    assert result((await mallory.request(listing, body(), timeout=5)).data)["sandboxes"] == []


async def test_a_denial_that_quotes_a_large_input_is_answered_and_audited(
    live: Part, home: Path, mallory: Wire
) -> None:
    create = subjects.request("sandbox", "create", "p-other", "u-mallory")
    with pytest.raises(SpecError):
        result((await mallory.request(create, body(spec={"A" * 600_000: 1}), timeout=5)).data)
    record = await audited(live, home, "audit.core.create.p-other", "unknown_field")
    assert len(record["detail"]) < 2000


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"op": "a.b", "deadline": 1}', b"\xff" * 100])
async def test_a_body_that_is_none_is_a_typed_error(mallory: Wire, raw: bytes) -> None:
    for noun, verb in (("sandbox", "create"), ("sandbox", "list"), ("log", "fetch")):
        with pytest.raises(DsecError) as caught:
            result(
                (
                    await mallory.request(
                        subjects.request(noun, verb, "p-other", "u-mallory"), raw, timeout=5
                    )
                ).data
            )
        assert caught.value.failure == "spec"
