"""Spools: exact bytes and kinds, whichever process reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsec.bus.frames import FRAME_BYTES, Kind
from dsec.plugins.edge.spool import Spool, remove

kinds = st.sampled_from([Kind.STDOUT, Kind.STDERR])


@pytest.fixture
def base(tmpfs: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    base = tmpfs / f"dsec-test-{os.getpid()}-{abs(hash(request.node.name))}"
    yield base
    remove(base)


def fed(spool: Spool, kind: Kind, data: bytes) -> int:
    read, write = os.pipe()
    try:
        os.write(write, data)
        os.set_blocking(read, False)
        return spool.take(kind, read, len(data))
    finally:
        os.close(read)
        os.close(write)


def all_of(spool: Spool) -> list[tuple[Kind, bytes]]:
    """What frames would carry, neighbours of one kind put together."""
    pieces, at = [], 0
    while at < spool.taken:
        pieces.append(spool.frame(at, FRAME_BYTES))
        assert pieces[-1][1]
        at += len(pieces[-1][1])
    return together(pieces)


def together(pieces: list[tuple[Kind, bytes]]) -> list[tuple[Kind, bytes]]:
    found: list[tuple[Kind, bytes]] = []
    for kind, data in pieces:
        before = found.pop()[1] if found and found[-1][0] is kind else b""
        found.append((kind, before + data))
    return found


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.tuples(kinds, st.binary(min_size=1, max_size=5000)), max_size=20), cut=st.integers(0)
)
def test_a_spool_gives_back_kinds_and_bytes_also_to_a_later_process(
    base: Path, pieces: list[tuple[Kind, bytes]], cut: int
) -> None:
    remove(base)
    cut = cut % (len(pieces) + 1)
    with Spool(base) as spool:
        for kind, data in pieces[:cut]:
            assert fed(spool, kind, data) == len(data)
    with Spool(base) as spool:
        for kind, data in pieces[cut:]:
            fed(spool, kind, data)
        assert all_of(spool) == together(pieces)


def test_a_mark_without_bytes_counts_for_nothing(base: Path) -> None:
    with Spool(base) as spool:
        fed(spool, Kind.STDOUT, b"out")
        spool._mark(Kind.STDERR)  # killed before the splice
    with Spool(base) as spool:
        fed(spool, Kind.STDOUT, b"more")
        assert all_of(spool) == [(Kind.STDOUT, b"outmore")]


def test_a_torn_mark_is_ignored(base: Path) -> None:
    with Spool(base) as spool:
        fed(spool, Kind.STDOUT, b"out")
    with base.with_suffix(".marks").open("ab") as marks:
        marks.write(b"\1\2")
    with Spool(base) as spool:
        assert all_of(spool) == [(Kind.STDOUT, b"out")]


def test_an_empty_pipe_and_a_closed_one_give_nothing(base: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    with Spool(base) as spool:
        assert spool.take(Kind.STDOUT, read, 100) == 0
        os.close(write)
        assert spool.take(Kind.STDOUT, read, 100) == 0
        assert spool.taken == 0
    os.close(read)


def test_a_truncation_is_remembered(base: Path) -> None:
    with Spool(base) as spool:
        fed(spool, Kind.STDOUT, b"out")
        assert not spool.truncated
        spool.truncate()
    with Spool(base) as spool:
        assert spool.truncated
        assert all_of(spool) == [(Kind.STDOUT, b"out")]


def test_what_is_stored_gives_its_memory_back_and_keeps_its_offsets(base: Path) -> None:
    block = os.urandom(32 * 1024)
    with Spool(base) as spool:
        for _ in range(40):
            fed(spool, Kind.STDOUT, block)
        before = base.with_suffix(".spool").stat()
        spool.forget(39 * len(block))
        after = base.with_suffix(".spool").stat()
        assert after.st_size == before.st_size == 40 * len(block)
        assert after.st_blocks * 512 <= 2 * len(block)
        assert spool.frame(39 * len(block), FRAME_BYTES) == (Kind.STDOUT, block)
