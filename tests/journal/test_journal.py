"""log.fetch: exact frames from any offset or cursor, bounded pages, and nobody else's."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from dsec.bus import ids, subjects
from dsec.bus.errors import BadId, DsecError, NoSuchExec
from dsec.bus.frames import FRAME_BYTES, Fold, Frame, Kind, pack_parts, unpack, unpack_data, unpack_frames
from dsec.bus.handlers import result
from dsec.bus.host import Context
from dsec.bus.messages import FetchedLog
from dsec.bus.nats.appender import Appender
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam import Iam
from dsec.plugins.journal import Journal
from tests.control.cluster import PRINCIPAL, PROJECT, Cluster, now_ms

SANDBOX = "s-one-abcdefgh"
META = b'{"argv":["x"]}'


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    home: Path = tmp_path_factory.mktemp("journal")
    async with Cluster.running(home) as running:
        Iam.create_node(running.home, "n-one")
        async with running.connected("journal") as wire, Journal.running(wire, Context(home)):
            yield running


def log_of(sizes: list[int], seed: int = 1) -> list[Frame]:
    """A log with one output frame of each size, alternating between the streams."""
    rng = random.Random(seed)
    frames, offset = [Frame(Kind.STARTED, 0, 0, 0, pack_parts(META, b"", b""))], 0
    for number, size in enumerate(sizes, 1):
        kind = Kind.STDERR if number % 3 == 0 else Kind.STDOUT
        frames.append(Frame(kind, number, offset, number, rng.randbytes(size)))
        offset += size
    return [*frames, Frame(Kind.EXIT, len(sizes) + 1, offset, 0, b'{"ended":"exit"}')]


async def store(cluster: Cluster, exec_: str, frames: list[Frame], project: str = PROJECT) -> None:
    subject = subjects.exec_stream(project, SANDBOX, exec_)
    async with cluster.connected("n-one") as node, Appender.running(node) as appender:
        stored = [await appender.append(subject, frame.pack()) for frame in frames]
        await asyncio.gather(*stored)


async def ask(wire: Wire, who: str, exec_: str, **options: int | str) -> tuple[FetchedLog, list[Frame]]:
    body = {"op": ids.new_operation(), "deadline": now_ms(10), "sandbox": SANDBOX, "exec": exec_} | options
    subject = subjects.request("log", "fetch", PROJECT, who)
    answer = await wire.request(subject, orjson.dumps(body), timeout=10)
    if answer.data.startswith(b"{"):
        result(answer.data)
    header, data = unpack_data(answer.data)
    assert len(answer.data) <= wire.max_payload
    return FetchedLog.model_validate_json(header), [unpack(raw) for raw in unpack_frames(data)]


async def fetch(cluster: Cluster, exec_: str, **options: int | str) -> tuple[FetchedLog, list[Frame]]:
    return await ask(cluster.tenant, PRINCIPAL, exec_, **options)


async def fetch_all(
    cluster: Cluster, exec_: str, offset: int = 0, max_bytes: int = 768 * 1024
) -> list[Frame]:
    frames: list[Frame] = []
    page, more = await fetch(cluster, exec_, offset=offset, max_bytes=max_bytes)
    frames += more
    while page.more:
        page, more = await fetch(cluster, exec_, offset=offset, cursor=page.cursor, max_bytes=max_bytes)
        frames += more
    return frames


def output(frames: list[Frame], offset: int = 0) -> bytes:
    fold, pieces = Fold(expected=offset), []
    for frame in frames:
        new = fold.feed(frame)
        assert new is not None, f"gap at {fold.expected}"
        pieces += [data for _, data in new]
    assert fold.end is not None
    return b"".join(pieces)


async def test_three_thousand_frames_come_back_exact_and_fast(cluster: Cluster) -> None:
    sizes = [random.Random(2).randint(1, 3000) for _ in range(3000)]
    log = log_of(sizes)
    await store(cluster, "e-threethousand", log)
    started = asyncio.get_running_loop().time()
    frames = await fetch_all(cluster, "e-threethousand")
    assert asyncio.get_running_loop().time() - started < 5
    assert frames == log


async def test_a_small_page_is_bounded_and_its_cursor_continues(cluster: Cluster) -> None:
    log = log_of([500] * 40)
    await store(cluster, "e-pages", log)
    page, frames = await fetch(cluster, "e-pages", max_bytes=4096)
    assert page.more
    assert sum(len(frame.pack()) + 4 for frame in frames) <= 4096
    assert await fetch_all(cluster, "e-pages", max_bytes=4096) == log


async def test_any_offset_gives_the_rest_and_starts_in_the_frame_it_lies_in(
    cluster: Cluster,
) -> None:
    log = log_of([700, 1, 1300, 64, 9000, 3])
    await store(cluster, "e-offsets", log)
    whole = output(log)
    for offset in [0, 1, 699, 700, 701, 702, 2000, 2065, len(whole) - 1, len(whole)]:
        frames = await fetch_all(cluster, "e-offsets", offset)
        assert output(frames, offset) == whole[offset:]
        assert all(frame.offset + frame.output > offset for frame in frames if frame.kind is Kind.STDOUT)


async def test_a_far_offset_of_a_long_log_is_found_without_reading_what_is_before(cluster: Cluster) -> None:
    log = log_of([FRAME_BYTES] * 640)  # 20 MiB
    await store(cluster, "e-long", log)
    whole = output(log)
    offset = len(whole) - 100_000
    page, frames = await fetch(cluster, "e-long", offset=offset)
    assert not page.more
    assert hashlib.sha256(output(frames, offset)).digest() == hashlib.sha256(whole[offset:]).digest()


async def test_frames_that_were_appended_twice_fold_to_the_same_output(cluster: Cluster) -> None:
    log = log_of([100] * 30)
    doubled = [*log[:12], *log[8:20], *log[17:]]
    await store(cluster, "e-doubled", doubled)
    for offset in (0, 950, 2999):
        assert output(await fetch_all(cluster, "e-doubled", offset), offset) == output(log)[offset:]


async def test_a_live_log_ends_for_now_and_goes_on_at_its_cursor(cluster: Cluster) -> None:
    log = log_of([10] * 6)
    await store(cluster, "e-live", log[:4])
    page, first = await fetch(cluster, "e-live")
    assert not page.more
    again, nothing = await fetch(cluster, "e-live", cursor=page.cursor)
    assert (again.more, nothing) == (False, [])
    await store(cluster, "e-live", log[4:])
    _, rest = await fetch(cluster, "e-live", cursor=again.cursor)
    assert first + rest == log


async def test_an_exec_that_never_was_is_gone(cluster: Cluster) -> None:
    with pytest.raises(NoSuchExec):
        await fetch(cluster, "e-neverwas")


async def test_another_projects_log_looks_as_if_it_never_was(cluster: Cluster) -> None:
    await store(cluster, "e-theirs", log_of([10]), project="p-other")
    with pytest.raises(NoSuchExec):
        await fetch(cluster, "e-theirs")


@pytest.mark.parametrize("exec_", ["e-*", "e-a.b", ">", "*", "", "e-abcd.>"])
async def test_an_id_that_is_none_is_refused(cluster: Cluster, exec_: str) -> None:
    with pytest.raises(BadId) as caught:
        await fetch(cluster, exec_)
    assert caught.value.field == "exec"


async def test_a_wildcard_sandbox_is_refused(cluster: Cluster) -> None:
    with pytest.raises(BadId) as caught:
        await fetch(cluster, "e-abcd", sandbox="*")
    assert caught.value.field == "sandbox"


async def test_forty_readers_at_once_each_get_their_own(cluster: Cluster) -> None:
    logs = {f"e-reader{n:02}": log_of([900] * 50, seed=n) for n in range(40)}
    await asyncio.gather(*(store(cluster, exec_, log) for exec_, log in list(logs.items())[:10]))
    for exec_, log in list(logs.items())[10:]:
        await store(cluster, exec_, log)
    got = await asyncio.gather(*(fetch_all(cluster, exec_, max_bytes=8192) for exec_ in logs))
    assert got == list(logs.values())


async def test_a_page_too_large_for_a_message_is_refused(cluster: Cluster) -> None:
    with pytest.raises(DsecError) as caught:
        await fetch(cluster, "e-pages", max_bytes=2 << 20)
    assert caught.value.field == "max_bytes"
