"""Damaged files of a node: what a kill or a full disk can leave is recovered from, anything else is told."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from dsec.bus.errors import InfraError
from dsec.plugins.edge.journal import Journal
from dsec.plugins.edge.once import Once
from dsec.plugins.edge.trajectory import Entry, Trajectory


@pytest.mark.parametrize("damage", ["garbage", "zeros in the middle"])
async def test_a_damaged_journal_is_told_with_what_to_do(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal.db"
    async with Journal.opened(path):
        pass
    path.write_bytes(b"x" * 5000 if damage == "garbage" else path.read_bytes()[:4096] + bytes(4096) * 3)
    with pytest.raises(InfraError, match=r"journal\.db is damaged .* move it away"):
        async with Journal.opened(path) as journal:
            await journal.rows()


async def test_a_torn_write_ahead_log_is_recovered_from(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with Journal.opened(path) as journal:
        epoch = journal.epoch
        wal = path.with_name("journal.db-wal").read_bytes()
    path.with_name("journal.db-wal").write_bytes(wal[: len(wal) // 2])
    async with Journal.opened(path) as journal:
        assert journal.epoch >= epoch


@pytest.mark.parametrize("tail", [b'{"log":2,"exec":"e-b"', b"\x00" * 100, b"[]\n", b'{"x":1}\n', b"1\n"])
def test_a_torn_trajectory_keeps_its_whole_lines(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "trajectory.jsonl"
    first = Trajectory(path)
    first.start(Entry(first.take_number(), "e-a", ["true"], 1.0, None, 1024))
    first.close()
    path.write_bytes(path.read_bytes() + tail)
    again = Trajectory(path)
    again.start(Entry(again.take_number(), "e-c", ["true"], 1.0, None, 1024))
    again.close()
    assert list(Trajectory(path).entries) == ["e-a", "e-c"]


async def test_a_repeat_has_the_first_answer_also_while_that_is_made() -> None:
    once, made = Once(), 0
    later = int(time.time() * 1000) + 60_000

    async def work() -> bytes:
        nonlocal made
        made += 1
        await asyncio.sleep(0.01)
        return b"answer"

    answers = await asyncio.gather(*(once.do(("key",), later, work) for _ in range(3)))
    assert [*answers, await once.do(("key",), later, work)] == [b"answer"] * 4
    assert made == 1


async def test_what_failed_is_done_again_and_what_is_late_is_forgotten() -> None:
    once, tries = Once(), 0

    async def work() -> bytes:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise InfraError("not yet")
        return b"done"

    with pytest.raises(InfraError):
        await once.do(("key",), int(time.time() * 1000) + 20, work)
    assert await once.do(("key",), int(time.time() * 1000) + 20, work) == b"done"
    await asyncio.sleep(0.03)
    assert await once.do(("other",), int(time.time() * 1000) + 20, work) == b"done"
    assert len(once) == 1
