"""The reader: whatever is lost, doubled or late on the way, the bytes are those of the log, within the
window.
"""

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsec.bus.errors import NodeLost, NoSuchExec, SpecError
from dsec.bus.frames import Frame, Kind, pack_parts, unpack
from dsec.bus.nats.broker import Broker
from dsec.sdk import Client, Ended, Sandbox
from dsec.sdk import stream as stream_module
from dsec.sdk.credit import Credit
from dsec.sdk.exec import Exec
from dsec.sdk.stream import Reader
from tests.sdk import support
from tests.sdk.conftest import asynchronous
from tests.sdk.support import SANDBOX, Log, Peer

END = b'{"ended":"exit","code":0,"wall_ms":1,"cpu_ms":1,"max_rss":1}'
COUNT = "for i in $(seq {n}); do echo line $i; done"


def expected(lines: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(1, lines + 1))


async def test_long_output_comes_whole_and_every_reader_resource_is_given_back(
    client: Client, sandbox: Sandbox
) -> None:
    running = await sandbox.start("head -c 20000000 /dev/zero | tr '\\0' a; printf END")
    digest = hashlib.sha256()
    async for chunk in running:
        digest.update(chunk)
    assert digest.digest() == hashlib.sha256(b"a" * 20_000_000 + b"END").digest()
    result = await running.wait()
    assert (result.ended, result.code, result.stdout_bytes) == (Ended.EXIT, 0, b"")
    assert client._link.readers == set()


async def test_lost_live_frames_are_fetched(peer: Peer, sandbox: Sandbox) -> None:
    peer.live = lambda frame: frame.sequence % 3 == 0 and frame.kind is not Kind.EXIT
    running = await sandbox.start(COUNT.format(n=200_000))
    assert (await running.wait()).stdout_bytes == expected(200_000)
    assert "log.fetch" in {verb for verb, _ in peer.ops}


async def test_a_handle_goes_on_at_its_offset_in_another_client(
    broker: Broker, peer: Peer, sandbox: Sandbox
) -> None:
    running = await sandbox.start(COUNT.format(n=50_000) + "; sleep 0.3; echo last")
    taken = b""
    async for chunk in running:
        taken += chunk
        if len(taken) > 100_000:
            break
    await running.close()
    assert running.offset == len(taken)
    async with support.client_of(broker) as other:
        later = other.exec(sandbox.id, running.id, offset=running.offset)
        result = await later.wait()
    assert taken + result.stdout_bytes == expected(50_000) + b"last\n"
    assert result.code == 0


async def test_the_history_of_an_ended_exec_is_read_from_the_log(client: Client, sandbox: Sandbox) -> None:
    running = await sandbox.start(COUNT.format(n=30_000) + "; exit 5")
    first = await running.wait()
    again = await client.exec(sandbox.id, running.id).wait()
    assert (first.stdout_bytes, first.code) == (again.stdout_bytes, again.code) == (expected(30_000), 5)


async def test_an_offset_beyond_the_end_is_told(client: Client, sandbox: Sandbox) -> None:
    running = await sandbox.start("sleep 0.1; echo x")
    await running.wait()
    with pytest.raises(SpecError) as caught:
        await client.exec(sandbox.id, running.id, offset=100).wait()
    assert caught.value.field == "offset"


async def test_an_exec_that_never_was_is_gone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "GRACE", 0.3)
    with pytest.raises(NoSuchExec):
        await client.exec(SANDBOX, "e-000000000000").wait()


async def test_a_reader_that_stops_is_sent_its_window_and_no_more(peer: Peer, sandbox: Sandbox) -> None:
    running = await sandbox.start("cat /dev/zero")
    await anext(running)
    log = peer.logs[running.id]
    await asyncio.sleep(0.3)
    assert log.offset <= running.offset + Credit().window
    before = log.offset
    used = time.process_time()
    await asyncio.sleep(0.5)
    assert log.offset == before
    assert time.process_time() - used < 0.1  # it waits, it does not spin
    await running.close()


async def test_a_closed_handle_reads_on_where_it_stopped(sandbox: Sandbox) -> None:
    running = await sandbox.start(COUNT.format(n=20_000) + "; sleep 0.3; echo last")
    taken = await anext(running) + await anext(running)
    await running.close()
    await asyncio.sleep(0.1)
    assert taken + (await running.wait()).stdout_bytes == expected(20_000) + b"last\n"


async def test_a_reader_that_is_closed_while_it_opens_gives_everything_back(
    client: Client, sandbox: Sandbox
) -> None:
    for turns in range(40):  # whatever it waits for at that moment
        running = await sandbox.start("cat /dev/zero")
        await anext(running)
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(running.close(), 10)
        await running.kill()
    assert client._link.readers == set()


@asynchronous
async def test_what_a_node_sends_beyond_the_window_is_not_kept(client: Client, peer: Peer) -> None:
    credit = Credit(window=64 * 1024)
    log = peer.logs["e-overfull"] = Log()
    reader = Reader(
        client._link, SANDBOX, "e-overfull", first=log.add(Kind.STARTED, pack_parts(b"{}", b"", b""))
    )
    reader._credit = credit
    for _ in range(100):
        reader._take(log.add(Kind.STDOUT, b"x" * 10_000))
    log.add(Kind.EXIT, END)
    assert sum(len(data) for _, data in reader._queue) <= credit.window
    total = 0
    while (piece := await reader.next()) is not None:
        total += len(piece[1])
        held = sum(len(data) for _, data in reader._queue) + sum(f.output for f in reader._early.values())
        assert held <= credit.window
    assert total == 1_000_000


async def test_text_and_lines_stay_whole_over_frames(sandbox: Sandbox) -> None:
    program = (
        "import os, time\n"
        "for byte in 'a\u20ac\U0001f600z'.encode():\n os.write(1, bytes([byte])); time.sleep(0.03)"
    )
    text = [piece async for piece in (await sandbox.start([sys.executable, "-c", program])).text()]
    assert "".join(text) == "a\u20ac\U0001f600z"
    assert "\ufffd" not in "".join(text)
    lines = [
        line
        async for line in (await sandbox.start("printf 'one\\ntw'; sleep 0.2; printf 'o\\nthree'")).lines()
    ]
    assert lines == ["one", "two", "three"]


async def test_signals_and_standard_input_reach_the_command(sandbox: Sandbox) -> None:
    running = await sandbox.start(["cat"], stdin_open=True)
    await running.write_stdin(b"one\n")
    await running.write_stdin("two\n")
    await running.close_stdin()
    assert (await running.wait()).stdout == "one\ntwo\n"
    sleeping = await sandbox.start(["sleep", "60"])
    await sleeping.kill()
    result = await sleeping.wait()
    assert (result.ended, result.signal) == (Ended.SIGNAL, 9)
    with pytest.raises(NoSuchExec):
        await sleeping.signal(15)


async def test_a_reader_crosses_the_death_of_the_broker(tmp_path: Path) -> None:
    async with (
        Broker.running(tmp_path / "broker") as broker,
        support.peer(broker, tmp_path),
        support.client_of(broker) as client,
    ):
        sandbox = await client.create(image="base")
        running = await sandbox.start("for i in $(seq 60); do echo line $i; sleep 0.02; done")
        taken = await anext(running)
        await asyncio.sleep(0.1)
        os.kill(broker.pid, signal.SIGKILL)
        assert taken + (await running.wait()).stdout_bytes == expected(60)
        assert (await sandbox.run("echo alive")).stdout == "alive\n"


async def test_a_node_that_stays_away_is_lost(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "PATIENCE", 0.5)
    async with support.client_of(broker, patience=0.5) as client:
        async with support.peer(broker, tmp_path):
            sandbox = await client.create(image="base")
            running = await sandbox.start(["sleep", "60"])
        with pytest.raises(NodeLost):
            await running.wait()
        with pytest.raises(NodeLost):
            await sandbox.stat()


# -- any way of cutting, doubling and losing frames folds to the same bytes

plans = st.lists(
    st.tuples(
        st.integers(0, 3000),
        st.sampled_from([Kind.STDOUT, Kind.STDERR]),
        st.sampled_from(["live", "lost", "twice"]),
    ),
    max_size=25,
)


@asynchronous
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans, first=st.integers(0, 2000), attached=st.booleans(), data=st.data())
async def test_any_cut_loss_and_doubling_folds_to_the_same_bytes(
    client: Client,
    peer: Peer,
    plan: list[tuple[int, Kind, str]],
    first: int,
    attached: bool,
    data: st.DataObject,
) -> None:
    exec_id = "e-" + hashlib.sha256(repr((plan, first, attached)).encode()).hexdigest()[:20]
    log = peer.logs[exec_id] = Log(ended=True)
    started = log.add(Kind.STARTED, pack_parts(b"{}", b"s" * first, b""))
    live: list[Frame] = []
    for size, kind, fate in plan:
        frame = log.add(kind, bytes(n % 251 for n in range(size)))
        live += {"live": [frame], "lost": [], "twice": [frame, frame]}[fate]
    log.add(Kind.EXIT, END)
    whole = {Kind.STDOUT: b"s" * first, Kind.STDERR: b""}
    for frame in log.frames[1:-1]:
        whole[frame.kind] += frame.data
    running = Exec(client._link, SANDBOX, exec_id, first=None if attached else started)
    for frame in live[: data.draw(st.integers(0, len(live)))]:
        running._reader._take(unpack(frame.pack()))
    result = await running.wait()
    assert (result.stdout_bytes, result.stderr_bytes) == (whole[Kind.STDOUT], whole[Kind.STDERR])


@given(
    window=st.integers(2, 1000),
    steps=st.lists(st.tuples(st.floats(0, 20), st.integers(0, 500)), max_size=50),
)
def test_a_grant_never_passes_the_window_nor_goes_back(window: int, steps: list[tuple[float, int]]) -> None:
    credit, now, taken = Credit(window=window), 0.0, 0
    granted = credit.grant(taken, now)
    for pause, wish in steps:
        now += pause
        taken = min(taken + wish, granted)
        if credit.due_in(taken, now) <= 0:
            assert credit.grant(taken, now) >= granted
        granted = credit.granted
        assert taken <= granted <= taken + window
        assert credit.due_in(taken, now) <= credit.lease / 2 + 1e-6
        with contextlib.suppress(StopIteration):
            assert credit.room(taken, granted) >= 0
