"""What one tenant does to the node, another one does not feel."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from dsec.bus import subjects
from dsec.bus.errors import LimitError
from dsec.bus.home import Home
from dsec.bus.ids import new_operation
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam import Iam
from dsec.sdk import Client, Sandbox
from dsec.sdk.spec_args import LimitArgs
from dsec.sdk.testing.platform import Part

pytestmark = pytest.mark.node


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def mallory(home: Path) -> Credentials:
    """Of a project that wishes the others ill; saved to its file."""
    return await asyncio.to_thread(Iam.create_principal, Home(home), "p-hog", "u-hog")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hog(live: Part, home: Path, mallory: Credentials) -> AsyncIterator[Client]:
    async with Client(live.url, Home(home).credentials / f"{mallory.owner}.json") as connected:
        yield connected


async def test_requests_that_wait_for_ever_stop_nobody_else(
    live: Part, mallory: Credentials, hog: Client, sandbox: Sandbox
) -> None:
    async with (
        hog.sandbox(backend="container", image="base") as theirs,
        Wire.connect(live.url, mallory, "hog") as wire,
    ):
        deaf = await theirs.start(["sleep", "60"], stdin_open=True)
        write = subjects.request("exec", "stdin", mallory.project, mallory.principal, theirs.id, deaf.id)
        fields = {"deadline": int((time.time() + 60) * 1000), "offset": 0, "data": "A" * 400_000}
        for _ in range(5000):
            body = orjson.dumps({"op": new_operation(), **fields})
            await wire.publish(write, body, reply=f"{wire.inbox}.none")
            fields["data"] = "AAAA"
        async with asyncio.timeout(10):
            assert (await sandbox.run(["true"])).ok


async def test_one_sandbox_cannot_take_the_nodes_descriptors(hog: Client, sandbox: Sandbox) -> None:
    limits: LimitArgs = {"pids": 4000, "memory": 2 << 30}
    async with hog.sandbox(backend="container", image="base", limits=limits) as theirs:
        started, refused = 0, False
        while not refused and started < 1500:
            burst = [theirs.start(["sleep", "60"], detach=True) for _ in range(100)]
            outcomes = await asyncio.gather(*burst, return_exceptions=True)
            refused = any(isinstance(outcome, LimitError) for outcome in outcomes)
            started += sum(not isinstance(outcome, BaseException) for outcome in outcomes)
        assert refused
        assert started >= 30
        assert (await sandbox.run(["true"])).ok
