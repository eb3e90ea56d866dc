"""The node's journal: which sandboxes it answers for, and what it answered, in SQLite on the node's disk.

All statements run in one thread, those that wait together in one transaction (group commit): the price of a
durable create is shared by all that arrive while the disk syncs. Durable jobs are synced (they survive a
power loss), others are only written (they survive kill -9 of the node's process).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from dsec.bus.driver import Handle
from dsec.bus.errors import DiskFull, DsecError, InfraError
from dsec.bus.messages import Record

log = logging.getLogger(__name__)

ANSWERS_KEPT: Final = 24 * 3600.0
"""Seconds for which a repeated operation finds its first answer."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL);
INSERT OR IGNORE INTO meta VALUES (1, 0);
CREATE TABLE IF NOT EXISTS sandboxes (
    sandbox TEXT PRIMARY KEY, phase TEXT NOT NULL, record TEXT,
    driver TEXT, version INTEGER, state BLOB
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, answer BLOB NOT NULL, time REAL NOT NULL
) WITHOUT ROWID;
"""


class Phase(StrEnum):
    """INTENT is written before the first stage of a create, so that a crash at any point is cleaned up."""

    INTENT = "intent"
    LIVE = "live"
    DESTROYING = "destroying"


@dataclass(frozen=True, slots=True)
class Row:
    """A sandbox in the journal; an intent has neither record nor handle, but tells the driver's name."""

    sandbox: str
    phase: Phase
    record: Record | None
    handle: Handle | None
    driver: str = ""


Statement = tuple[str, tuple[Any, ...]]


@dataclass(slots=True)
class _Job:
    statements: list[Statement]
    durable: bool
    done: asyncio.Future[list[tuple[Any, ...]]]


@dataclass(slots=True)
class Counts:
    """What the thread has done: transactions, entries in them, seconds."""

    commits: int = 0
    entries: int = 0
    seconds: float = 0.0


class Journal:
    """See the module. Methods raise DiskFull, and InfraError when the journal cannot be written."""

    def __init__(self) -> None:
        self.epoch = 0
        """Grows by one each time the journal is opened: the number of this life of the node."""
        self.counts = Counts()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, path: Path) -> AsyncIterator[Journal]:
        """The journal at `path`, made if it is not there; its epoch is a new one."""
        journal = cls()
        path.parent.mkdir(parents=True, exist_ok=True)
        loop = asyncio.get_running_loop()
        thread = threading.Thread(
            target=_work, args=(path, journal._jobs, loop, journal.counts), name="journal"
        )
        thread.start()
        try:
            await journal._do(("UPDATE meta SET epoch = epoch + 1", ()), durable=True)
            await journal.expire()
            ((journal.epoch,),) = await journal._do(("SELECT epoch FROM meta", ()))
            yield journal
        finally:
            journal._jobs.put(None)
            await asyncio.shield(asyncio.to_thread(thread.join))

    async def intend(self, sandbox: str, driver: str) -> None:
        """A create begins, by the driver of that name."""
        await self._do(
            (
                "INSERT OR REPLACE INTO sandboxes (sandbox, phase, driver) VALUES (?, 'intent', ?)",
                (sandbox, driver),
            )
        )

    async def live(self, record: Record, handle: Handle, key: str, answer: bytes) -> None:
        """The create of `record` is acknowledged: on disk when this returns, with its answer."""
        await self._do(
            (
                "INSERT OR REPLACE INTO sandboxes VALUES (?, 'live', ?, ?, ?, ?)",
                (record.sandbox, record.model_dump_json(), handle.driver, handle.version, handle.state),
            ),
            _answer(key, answer),
            durable=True,
        )

    async def update(self, record: Record) -> None:
        """The record changed; a power loss may take the change back."""
        await self._do(
            (
                "UPDATE sandboxes SET record = ? WHERE sandbox = ?",
                (record.model_dump_json(), record.sandbox),
            )
        )

    async def revive(self, record: Record, handle: Handle) -> None:
        """Its inside is another one now."""
        await self._do(
            (
                "UPDATE sandboxes SET record = ?, driver = ?, version = ?, state = ? WHERE sandbox = ?",
                (record.model_dump_json(), handle.driver, handle.version, handle.state, record.sandbox),
            )
        )

    async def destroying(self, sandbox: str) -> None:
        """From here on a restarted node finishes the destroy."""
        await self._do(
            ("UPDATE sandboxes SET phase = 'destroying' WHERE sandbox = ?", (sandbox,)), durable=True
        )

    async def forget(self, sandbox: str, key: str = "", answer: bytes = b"") -> None:
        """Nothing is left of the sandbox; with `key`, that was what `answer` told the caller."""
        answers = [_answer(key, answer)] if key else []
        await self._do(("DELETE FROM sandboxes WHERE sandbox = ?", (sandbox,)), *answers)

    async def outgrow(self, epoch: int) -> None:
        """This life is `epoch` from now on; never less than it was."""
        await self._do(("UPDATE meta SET epoch = max(epoch, ?)", (epoch,)), durable=True)
        self.epoch = max(self.epoch, epoch)

    async def bury(self, record: Record) -> None:
        """Nothing is left of a sandbox that was declared failed; no answer promises it any more."""
        project, sandbox = record.project, record.sandbox
        await self._do(
            ("DELETE FROM sandboxes WHERE sandbox = ?", (sandbox,)),
            (
                "DELETE FROM answers WHERE key LIKE ? AND instr(answer, CAST(? AS BLOB)) > 0",
                (f"{project}/create/%", sandbox),
            ),
            _answer(f"{project}/lost/{sandbox}", b""),
            durable=True,
        )

    async def lost(self) -> dict[str, str]:
        """The project of each sandbox that was buried within the last `ANSWERS_KEPT` seconds."""
        rows = await self._do(("SELECT key FROM answers WHERE key LIKE '%/lost/%'", ()))
        split = (str(row[0]).split("/lost/") for row in rows)
        return {sandbox: project for project, sandbox in split}

    async def retract(self, sandbox: str, key: str) -> None:
        """The create was undone, however far it had come: nothing is left of it, nor of its answer."""
        await self._do(
            ("DELETE FROM sandboxes WHERE sandbox = ?", (sandbox,)),
            ("DELETE FROM answers WHERE key = ?", (key,)),
        )

    async def remember(self, key: str, answer: bytes) -> None:
        """Keep the first answer of an operation."""
        await self._do(_answer(key, answer))

    async def answered(self, key: str) -> bytes | None:
        """The first answer of an operation, if there was one."""
        found = await self._do(("SELECT answer FROM answers WHERE key = ?", (key,)))
        return bytes(found[0][0]) if found else None

    async def expire(self) -> None:
        """Forget answers older than `ANSWERS_KEPT`."""
        await self._do(("DELETE FROM answers WHERE time < ?", (time.time() - ANSWERS_KEPT,)))

    async def rows(self) -> list[Row]:
        """All sandboxes, as a restarted node finds them."""
        return [_row(*row) for row in await self._do(("SELECT * FROM sandboxes", ()))]

    async def _do(self, *statements: Statement, durable: bool = False) -> list[tuple[Any, ...]]:
        done: asyncio.Future[list[tuple[Any, ...]]] = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(list(statements), durable, done))
        return await done


def _answer(key: str, answer: bytes) -> Statement:
    return "INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", (key, answer, time.time())


def _row(
    sandbox: str, phase: str, record: str | None, driver: str | None, version: int, state: bytes | None
) -> Row:
    handle = Handle(sandbox, driver, version, state) if driver and state is not None else None
    parsed = Record.model_validate_json(record) if record else None
    return Row(sandbox, Phase(phase), parsed, handle, driver or "")


def _work(
    path: Path, jobs: queue.SimpleQueue[_Job | None], loop: asyncio.AbstractEventLoop, counts: Counts
) -> None:
    """The thread: one transaction for everything that waits."""
    database: sqlite3.Connection | None = None
    while batch := _batch(jobs):
        began = time.perf_counter()
        try:
            database = database or _open(path)
            outcome: list[list[tuple[Any, ...]]] | DsecError = _commit(database, batch)
        except sqlite3.Error as error:
            outcome = _typed(error, path)
            log.warning("journal: %s", outcome)
        counts.commits += 1
        counts.entries += len(batch)
        counts.seconds += time.perf_counter() - began
        loop.call_soon_threadsafe(_tell, batch, outcome)
    if database is not None:
        database.close()


def _batch(jobs: queue.SimpleQueue[_Job | None]) -> list[_Job]:
    batch: list[_Job] = []
    with contextlib.suppress(queue.Empty):
        job = jobs.get()
        while job is not None:
            batch.append(job)
            job = jobs.get_nowait()
        if batch:
            jobs.put(None)
    return batch


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, timeout=5)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    database.executescript(_SCHEMA)
    return database


def _commit(database: sqlite3.Connection, batch: list[_Job]) -> list[list[tuple[Any, ...]]]:
    database.execute(f"PRAGMA synchronous = {'FULL' if any(job.durable for job in batch) else 'NORMAL'}")
    database.execute("BEGIN IMMEDIATE")
    try:
        results = [_run(database, job.statements) for job in batch]
        database.execute("COMMIT")
    except sqlite3.Error:
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise
    return results


def _run(database: sqlite3.Connection, statements: list[Statement]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for sql, arguments in statements:
        rows = database.execute(sql, arguments).fetchall()
    return rows


def _typed(error: sqlite3.Error, path: Path) -> DsecError:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        advice = "move it away to start without its sandboxes, which are removed then"
        return InfraError(f"the node's journal {path} is damaged ({error}): {advice}")
    if name == "SQLITE_FULL":
        return DiskFull("the node's disk is full: its journal cannot be written")
    return InfraError(f"the node's journal cannot be written: {name or type(error).__name__}: {error}")


def _tell(batch: list[_Job], outcome: list[list[tuple[Any, ...]]] | DsecError) -> None:
    for at, job in enumerate(batch):
        if job.done.done():
            continue
        if isinstance(outcome, DsecError):
            job.done.set_exception(outcome)
        else:
            job.done.set_result(outcome[at])
