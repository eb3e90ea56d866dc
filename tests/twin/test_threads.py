"""The twin in plain programs: threads, interruptions, forks, loops; against the protocol peer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

import dsec
from dsec.bus.errors import BrokerDown, Conflict, Failure
from dsec.bus.trace import TRACEPARENT
from tests.twin.conftest import Place

WITHIN = 30.0


async def used(place: Place, work: Callable[[dsec.sync.Client], object]) -> None:
    """`work` with a client, in a thread, as in a program without a loop."""

    def program() -> None:
        with dsec.sync.Client(place.url, place.credentials, patience=10.0) as client:
            work(client)

    before = threading.active_count()
    await asyncio.wait_for(asyncio.to_thread(program), WITHIN)
    assert not [one for one in threading.enumerate() if one.name == "dsec.sync"], before


async def test_a_program_reads_as_the_asynchronous_one_does(place: Place) -> None:
    def work(client: dsec.sync.Client) -> None:
        with client.sandbox(image="base") as sandbox:
            assert sandbox.run("echo out; exit 3", timeout=60).code == 3
            assert b"".join(sandbox.start("seq 3; sleep 0.1; seq 4 5")) == b"1\n2\n3\n4\n5\n"
            assert [*sandbox.start("seq 2; sleep 0.1").lines()] == ["1", "2"]
            sandbox.files.write("/made", (bytes([n]) * 1000 for n in range(3)))
            assert b"".join(sandbox.files.read_stream("/made", offset=1999)) == b"\1" + b"\2" * 1000
            assert len([*client.list()]) == 5

    await used(place, work)
    assert place.peer.done["destroy"] == 1


async def test_threads_call_at_once_and_each_gets_its_own(place: Place) -> None:
    def work(client: dsec.sync.Client) -> None:
        sandbox = client.create(image="base")
        began = threading.Barrier(8)

        def one(number: int) -> str:
            began.wait(WITHIN)
            return sandbox.run(f"sleep 0.2; echo {number}").stdout

        with ThreadPoolExecutor(8) as pool:
            assert [*pool.map(one, range(8))] == [f"{number}\n" for number in range(8)]

    await used(place, work)


async def test_what_a_file_is_fed_with_may_itself_call_the_twin(place: Place) -> None:
    def work(client: dsec.sync.Client) -> None:
        sandbox = client.create(image="base")
        sandbox.files.write("/one", b"x" * 600_000)
        sandbox.files.write("/two", sandbox.files.read_stream("/one"))
        assert sandbox.files.read("/two") == b"x" * 600_000

    await used(place, work)


async def test_an_iterator_that_is_left_early_gives_its_reader_back(place: Place) -> None:
    def work(client: dsec.sync.Client) -> None:
        sandbox = client.create(image="base")
        with sandbox.start("cat /dev/zero") as running:
            for kind, _ in running.stream():
                assert kind is dsec.Kind.STDOUT
                break
        link = client._origin._link
        assert link.readers == set()
        with closing(client.watch()) as changes:
            assert next(changes).what == "listed"
            assert link.reconnected
        assert not link.reconnected

    await used(place, work)


async def test_a_block_tells_its_own_error_and_cleans_up(place: Place) -> None:
    def work(client: dsec.sync.Client) -> None:
        with pytest.raises(Conflict) as caught, client.sandbox(image="base"):
            raise Conflict("the block's own")
        assert "work" in {entry.name for entry in caught.traceback}
        with pytest.raises(StopIteration), client.sandbox(image="base"):
            raise StopIteration

    await used(place, work)
    assert place.peer.done["destroy"] == 2


async def test_a_trace_of_the_calling_thread_is_that_of_its_calls(place: Place) -> None:
    def work(client: dsec.sync.Client) -> None:
        with dsec.sync.trace() as traceparent:
            client.create(image="base")
        seen.append(traceparent)

    seen: list[str] = []
    heard: list[str | None] = []
    subscription = await place.peer.bus.subscribe(
        "sandbox.create.*.*", lambda message: heard.append((message.headers or {}).get(TRACEPARENT))
    )
    await used(place, work)
    await subscription.unsubscribe()
    assert heard == seen


async def test_the_thread_of_an_event_loop_is_refused(place: Place) -> None:
    here = dsec.sync.Client(place.url, place.credentials)
    with pytest.raises(dsec.sync.WrongPlace, match=r"await `dsec\.Client`") as caught, here:
        pytest.fail("it would have blocked the loop")
    assert caught.value.failure is Failure.SPEC
    opened = await asyncio.to_thread(dsec.sync.Client(place.url, place.credentials).__enter__)
    with pytest.raises(dsec.sync.WrongPlace):
        opened.create(image="base")
    await asyncio.to_thread(opened.__exit__, None, None, None)
    assert place.peer.ops == []


def test_a_client_outside_of_its_block_says_so(place: Place) -> None:
    client = dsec.sync.Client(place.url, place.credentials)
    with pytest.raises(BrokerDown, match=r"with dsec\.sync\.Client"):
        client.create(image="base")
