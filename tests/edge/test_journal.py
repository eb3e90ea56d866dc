"""The node's journal: what it keeps over a restart, and what a full disk looks like."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.bus import ids
from dsec.bus.driver import Handle
from dsec.bus.errors import DiskFull
from dsec.bus.messages import Record, State
from dsec.bus.spec import Limits, Spec
from dsec.plugins.edge.journal import Journal, Phase

HANDLE = Handle("", "container", 1, b"\0state")


def record(state: State = State.RUNNING) -> Record:
    return Record(
        sandbox=ids.sandbox_on("n-edge"),
        project="p-default",
        principal="u-admin",
        node="n-edge",
        epoch=1,
        state=state,
        spec=Spec.model_validate({"image": "base"}),
        applied=Limits(pids=7),
        created=1,
        expires=2,
    )


async def test_a_live_sandbox_is_found_again_with_its_handle_and_answer(tmp_path: Path) -> None:
    kept = record()
    async with Journal.opened(tmp_path / "j") as journal:
        await journal.intend(kept.sandbox, "container")
        assert [(row.phase, row.driver) for row in await journal.rows()] == [(Phase.INTENT, "container")]
        await journal.live(kept, HANDLE, "key", b"answer")
    async with Journal.opened(tmp_path / "j") as journal:
        [row] = await journal.rows()
        assert (row.phase, row.record) == (Phase.LIVE, kept)
        assert row.handle == Handle(kept.sandbox, "container", 1, b"\0state")
        assert await journal.answered("key") == b"answer"
        assert await journal.answered("other") is None


async def test_each_opening_is_a_new_epoch(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        async with Journal.opened(tmp_path / "j") as journal:
            epochs.append(journal.epoch)
    assert epochs == [1, 2, 3]


async def test_a_destroyed_sandbox_leaves_its_answer_only(tmp_path: Path) -> None:
    kept = record()
    async with Journal.opened(tmp_path / "j") as journal:
        await journal.live(kept, HANDLE, "create", b"created")
        await journal.destroying(kept.sandbox)
        assert [row.phase for row in await journal.rows()] == [Phase.DESTROYING]
        await journal.forget(kept.sandbox, "destroy", b"gone")
        assert await journal.rows() == []
        assert await journal.answered("destroy") == b"gone"


async def test_the_first_answer_stays_the_answer(tmp_path: Path) -> None:
    async with Journal.opened(tmp_path / "j") as journal:
        await journal.remember("key", b"first")
        await journal.remember("key", b"second")
        assert await journal.answered("key") == b"first"


async def test_many_at_once_are_all_kept(tmp_path: Path) -> None:
    records = [record() for _ in range(300)]
    async with Journal.opened(tmp_path / "j") as journal:
        await asyncio.gather(*(journal.live(one, HANDLE, one.sandbox, b"") for one in records))
    async with Journal.opened(tmp_path / "j") as journal:
        assert {row.sandbox for row in await journal.rows()} == {one.sandbox for one in records}


async def test_a_change_of_the_record_is_kept(tmp_path: Path) -> None:
    kept = record()
    async with Journal.opened(tmp_path / "j") as journal:
        await journal.live(kept, HANDLE, "key", b"")
        await journal.update(kept.model_copy(update={"state": State.PAUSED}))
        [row] = await journal.rows()
        assert row.record is not None
        assert row.record.state is State.PAUSED


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.node
async def test_a_full_disk_is_typed_and_leaves_the_journal_whole(small_disk: Path) -> None:
    kept = record()
    async with Journal.opened(small_disk / "j") as journal:
        await journal.live(kept, HANDLE, "key", b"")
        with pytest.raises(DiskFull):
            await _fill(journal)
        assert [row.sandbox for row in await journal.rows()] == [kept.sandbox]


async def _fill(journal: Journal) -> None:
    for _ in range(100):
        await journal.remember(ids.new_operation(), bytes(20_000))
