"""One contract, two members: what holds on a broker holds within one process."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.errors import DeadlineExceeded, NodeLost, SpecError, TooLarge
from dsec.bus.local import Hub, matches
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Bus, Received

Pair = tuple[Bus, Bus]


class BusContract:
    """Subclasses give `pair`: two connections of different identities to the same bus."""

    async def test_a_request_is_answered_by_a_subscriber(self, pair: Pair) -> None:
        server, client = pair
        await server.subscribe("echo.*", _answering(server))
        answer = await client.request("echo.one", b"\x00bytes", timeout=2)
        assert answer.data == b"\x00bytes"
        assert answer.subject.startswith(client.inbox + ".")

    async def test_headers_arrive(self, pair: Pair) -> None:
        server, client = pair
        got = await _collect(server, "heads.x")
        await client.publish("heads.x", b"body", reply="there", headers={"Nats-Msg-Id": "7", "Why": "ä"})
        message = await asyncio.wait_for(got.get(), 10)
        assert (message.data, message.reply) == (b"body", "there")
        assert message.headers is not None
        assert message.headers["Nats-Msg-Id"] == "7"

    async def test_messages_of_one_sender_keep_their_order(self, pair: Pair) -> None:
        server, client = pair
        got = await _collect(server, "order.>")
        for number in range(500):
            await client.publish(f"order.{number % 7}", str(number).encode())
        assert [int((await asyncio.wait_for(got.get(), 10)).data) for _ in range(500)] == list(range(500))

    async def test_what_follows_a_round_trip_comes_after_what_went_before_it(self, pair: Pair) -> None:
        one, other = pair
        got = await _collect(other, "trip.>")
        for number in range(50):
            await one.publish("trip.before", b"x" * 1000)
            await one.round_trip()
            await other.publish("trip.after", b"")
            before, after = [await asyncio.wait_for(got.get(), 10) for _ in range(2)]
            assert (before.subject, after.subject) == ("trip.before", "trip.after"), number

    async def test_of_a_queue_group_one_member_gets_each_message(self, pair: Pair) -> None:
        server, client = pair
        got: asyncio.Queue[Received] = asyncio.Queue()
        for bus in (server, server, client):
            await bus.subscribe("work.*", got.put_nowait, "workers")
        for number in range(60):
            await client.publish("work.x", str(number).encode())
        await _settled(client)
        assert sorted(int(got.get_nowait().data) for _ in range(got.qsize())) == list(range(60))

    async def test_every_plain_subscriber_gets_each_message(self, pair: Pair) -> None:
        server, client = pair
        first, second = await _collect(server, "news.*"), await _collect(client, "news.>")
        await client.publish("news.x", b"1")
        for got in (first, second):
            assert (await asyncio.wait_for(got.get(), 10)).data == b"1"

    async def test_nothing_arrives_after_unsubscribe_which_may_be_repeated(self, pair: Pair) -> None:
        server, client = pair
        got: asyncio.Queue[Received] = asyncio.Queue()
        subscription = await server.subscribe("gone.x", got.put_nowait)
        await subscription.unsubscribe()
        await subscription.unsubscribe()
        await client.publish("gone.x", b"")
        await _settled(client)
        assert got.empty()

    async def test_a_request_that_nobody_listens_to_fails_at_once_as_node_lost(self, pair: Pair) -> None:
        async with asyncio.timeout(5):
            with pytest.raises(NodeLost, match="nobody answers"):
                await pair[1].request("nobody.here", b"", timeout=30)

    async def test_a_request_without_answer_ends_at_its_timeout(self, pair: Pair) -> None:
        server, client = pair
        await _collect(server, "silent.x")
        with pytest.raises(DeadlineExceeded, match="no answer within"):
            await client.request("silent.x", b"", timeout=0.05)

    async def test_two_megabytes_are_too_large(self, pair: Pair) -> None:
        with pytest.raises(TooLarge, match="2000000 bytes"):
            await pair[0].publish("big.x", bytes(2_000_000))
        with pytest.raises(TooLarge):
            await pair[0].request("big.x", bytes(2_000_000), timeout=1)

    async def test_the_largest_message_fits(self, pair: Pair) -> None:
        server, client = pair
        got = await _collect(server, "full.x")
        await client.publish("full.x", bytes(client.max_payload))
        assert len((await asyncio.wait_for(got.get(), 5)).data) == client.max_payload == 1024 * 1024

    async def test_a_subject_with_white_space_is_refused(self, pair: Pair) -> None:
        for subject in ("", "a b", "a\r\nPUB b 0\r\n", "a\tb"):
            with pytest.raises(SpecError):
                await pair[0].publish(subject, b"")

    async def test_a_failing_callback_harms_no_later_message(
        self, pair: Pair, caplog: pytest.LogCaptureFixture
    ) -> None:
        server, client = pair

        def answer(message: Received) -> None:
            if message.data == b"bad":
                raise ZeroDivisionError
            _answering(server)(message)

        await server.subscribe("risky.x", answer)
        await client.publish("risky.x", b"bad")
        assert (await client.request("risky.x", b"good", timeout=2)).data == b"good"
        assert "ZeroDivisionError" in caplog.text

    async def test_a_cancelled_request_harms_no_other(self, pair: Pair) -> None:
        server, client = pair
        await server.subscribe("echo2.x", _answering(server))
        for _ in range(20):
            task = asyncio.create_task(client.request("echo2.x", b"", timeout=5))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert (await client.request("echo2.x", b"still", timeout=2)).data == b"still"


class TestWire(BusContract):
    @pytest_asyncio.fixture
    async def pair(self, broker: Broker) -> AsyncIterator[Pair]:
        async with (
            Wire.connect(broker.url, Credentials.new(Role.CORE)) as server,
            Wire.connect(
                broker.url, Credentials.new(Role.TENANT, project="p-a", principal="u-ann")
            ) as client,
        ):
            yield server, client


class TestLocal(BusContract):
    @pytest_asyncio.fixture
    async def pair(self) -> Pair:
        hub = Hub()
        return hub.bus("core"), hub.bus("u-ann")


def _answering(bus: Bus) -> "_Answering":
    return _Answering(bus)


class _Answering:
    """Sends back what it gets; keeps its tasks until they are done."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, message: Received) -> None:
        task = asyncio.create_task(self._bus.publish(message.reply, message.data))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _collect(bus: Bus, subject: str) -> asyncio.Queue[Received]:
    got: asyncio.Queue[Received] = asyncio.Queue()
    await bus.subscribe(subject, got.put_nowait)
    return got


async def _settled(bus: Bus) -> None:
    """What was published before has been delivered."""
    with pytest.raises(NodeLost):
        await bus.request("nobody.at.all", b"", timeout=2)
    await asyncio.sleep(0.05)


TOKENS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5)


@given(TOKENS, st.data())
def test_a_subject_matches_itself_with_any_token_starred(tokens: list[str], data: st.DataObject) -> None:
    starred = [data.draw(st.sampled_from([token, "*"])) for token in tokens]
    assert matches(".".join(starred), ".".join(tokens))
    assert not matches(".".join([*starred, "*"]), ".".join(tokens))


@given(TOKENS, st.integers(0, 5))
def test_a_tail_wildcard_stands_for_one_token_or_more(tokens: list[str], kept: int) -> None:
    pattern = ".".join([*tokens[:kept], ">"])
    assert matches(pattern, ".".join(tokens)) == (kept < len(tokens))
