"""The client and the command line on the real platform: readers that stall, are many, or are cut off."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from typing import cast

import pytest
import pytest_asyncio

from dsec.bus.nats.wire import Wire
from dsec.sdk import Client, Ended, Exec, Sandbox, sync
from dsec.sdk.credit import WINDOW
from dsec.sdk.testing.platform import Part
from tests.cli.conftest import Outcome, dsec_process
from tests.sdk.face import Face

pytestmark = pytest.mark.node

PROGRAM = (
    "import random, sys; r = random.Random({seed});"
    "[sys.stdout.buffer.write(r.randbytes(65536)) for _ in range({n})]"
)


def expected(seed: int, count: int) -> str:
    source = random.Random(seed)
    digest = hashlib.sha256()
    for _ in range(count):
        digest.update(source.randbytes(65536))
    return digest.hexdigest()


async def digest_of(running: Exec) -> str:
    digest = hashlib.sha256()
    async for chunk in running:
        digest.update(chunk)
    return digest.hexdigest()


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["async", "sync"])
async def real(request: pytest.FixtureRequest, live: Part) -> AsyncIterator[Client]:
    if request.param == "async":
        async with live.client() as connected:
            yield connected
    else:
        async with Face(sync.Client(live.url, live.credentials)) as faced:
            yield cast("Client", faced)


@pytest_asyncio.fixture(loop_scope="session")
async def box(real: Client) -> AsyncIterator[Sandbox]:
    async with real.sandbox(image="base") as fresh:
        yield fresh


async def test_a_reader_that_stalls_holds_its_window_and_loses_nothing(box: Sandbox) -> None:
    running = await box.start(["python3", "-c", PROGRAM.format(seed=1, n=400)])
    digest = hashlib.sha256(await anext(running))
    await asyncio.sleep(1.5)
    assert sum(len(data) for _, data in running._reader._queue) <= WINDOW
    async for chunk in running:
        digest.update(chunk)
    assert digest.hexdigest() == expected(1, 400)
    assert (await running.wait()).truncated is False


async def test_many_readers_at_once_each_get_their_own(box: Sandbox) -> None:
    async def one(seed: int) -> None:
        running = await box.start(["python3", "-c", PROGRAM.format(seed=seed, n=20)], timeout=60)
        assert await digest_of(running) == expected(seed, 20)

    await asyncio.gather(*(one(seed) for seed in range(16)))


async def test_two_readers_of_one_exec_see_the_same(live: Part, box: Sandbox) -> None:
    running = await box.start(["python3", "-c", PROGRAM.format(seed=2, n=60)])
    async with live.client() as other:
        digests = await asyncio.gather(digest_of(running), digest_of(other.exec(box.id, running.id)))
    assert set(digests) == {expected(2, 60)}


async def test_a_client_whose_connection_breaks_misses_nothing(live: Part, box: Sandbox) -> None:
    async with live.client() as other:
        sandbox = await other.attach(box.id)
        running = await sandbox.start(
            "for i in $(seq 2000); do echo line $i; [ $((i % 100)) = 0 ] && sleep 0.05; done"
        )
        reading = asyncio.create_task(running.wait())
        for _ in range(3):
            await asyncio.sleep(0.2)
            _cut(other)
            await sandbox.run("true")
        result = await reading
    assert result.stdout == "".join(f"line {number}\n" for number in range(1, 2001))
    assert result.ended is Ended.EXIT


def _cut(client: Client) -> None:
    wire = client._link.bus
    assert isinstance(wire, Wire)
    stream = wire._connection._stream()
    assert stream is not None
    stream.transport.abort()


async def test_the_command_line_does_a_sandboxs_whole_life(live: Part) -> None:
    async def dsec(command: str, *argv: str) -> Outcome:
        return await dsec_process(command, "--home", str(live.ready["home"]), *argv)

    assert (
        await dsec("run", "--image", "base", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    ).code == 3
    created = await dsec("create", "--image", "base", "--pids", "50", "--ttl", "60")
    name = created.out.strip()
    try:
        timed_out = await dsec("exec", "--timeout", "0.3", name, "--", "sleep", "9")
        detached = await dsec("exec", "-d", name, "--", "sh", "-c", "sleep 0.2; echo late; exit 4")
        logs = await dsec("logs", "--json", name, detached.out.strip())
        packed = await dsec("pack", "--json", name, "kept-" + name[-6:])
        assert (await dsec("stat", "--json", name)).objects[0]["applied"]["pids"] == 50
        assert name in (await dsec("ls")).out
    finally:
        assert (await dsec("rm", name)).code == 0
    assert timed_out.code == 124
    assert (logs.code, logs.objects[0]["text"], logs.objects[-1]["code"]) == (4, "late\n", 4)
    assert packed.objects[0]["kind"] == "pack"
    gone = await dsec("exec", name, "--", "true")
    assert (gone.code, gone.err.split(": ")[1]) == (125, "no_such_sandbox")
