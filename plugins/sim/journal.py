"""The journal of simulated nodes: lines of JSON appended to one file, synced in groups.

Entries that wait while the disk syncs go with the next sync together, so the price of a durable create is
shared by all nodes of the process. A line torn by `kill -9` was never acknowledged and is dropped when the
file is opened again; then the file is also rewritten without what is over, and its epoch grows by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from dsec.bus.errors import DiskFull, DsecError, InfraError

GATHER: Final = 0.008
"""Seconds between two syncs at the least: what comes meanwhile goes together, to the disk and, as each node
tells it in one write, to the broker."""
_NO_SPACE: Final = {28, 122}
"""ENOSPC, EDQUOT."""


def packed(record: dict[str, Any]) -> bytes:
    """A record as JSON to be kept: a copy, since what orjson returns holds its whole buffer of 8 KiB."""
    return memoryview(orjson.dumps(record)).tobytes()


@dataclass(slots=True)
class Past:
    """What a former process acknowledged on one node: records, answers by key, destroyed, lost, execs.

    Records are JSON as answered. `execs`: exec id to its number in the sandbox's journal, by sandbox.
    `epoch`: the node's newest life, which may be later than that of the process.
    """

    records: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    execs: dict[str, dict[str, int]] = field(default_factory=dict)
    epoch: int = 0

    def fold(self, entry: dict[str, Any]) -> None:
        """Take one line in."""
        match entry["what"]:
            case "create":
                record = packed(entry["record"])
                self.records[entry["record"]["sandbox"]] = self.answers[entry["key"]] = record
            case "change":
                self.records[entry["record"]["sandbox"]] = packed(entry["record"])
            case "exec":
                self.execs.setdefault(entry["sandbox"], {})[entry["exec"]] = entry["log"]
            case "gone" | "lost" as how:
                self.records.pop(entry["sandbox"], None)
                self.execs.pop(entry["sandbox"], None)
                (self.gone if how == "gone" else self.lost)[entry["sandbox"]] = entry["project"]
            case "life":
                self.epoch = max(self.epoch, entry["epoch"])

    def lines(self, node: str) -> Iterator[bytes]:
        """The shortest journal that folds to this."""
        if self.epoch:
            yield life(node, self.epoch)
        for key, record in self.answers.items():
            yield created(node, key, record)
        for record in self.records.values():
            yield changed(node, record)
        for sandbox, project in self.gone.items():
            yield gone(node, sandbox, project)
        for sandbox, project in self.lost.items():
            yield lost(node, sandbox, project)
        for sandbox, execs in self.execs.items():
            for exec_, number in execs.items():
                yield started(node, sandbox, exec_, number)


def created(node: str, key: str, record: bytes) -> bytes:
    """A create is acknowledged under its operation's key."""
    return b'{"what":"create","node":"%b","key":"%b","record":%b}\n' % (node.encode(), key.encode(), record)


def changed(node: str, record: bytes) -> bytes:
    """The record of a sandbox is another one now."""
    return b'{"what":"change","node":"%b","record":%b}\n' % (node.encode(), record)


def gone(node: str, sandbox: str, project: str) -> bytes:
    """Nothing is left of a sandbox."""
    return _ended("gone", node, sandbox, project)


def lost(node: str, sandbox: str, project: str) -> bytes:
    """Nothing is left of a sandbox that was declared failed; no answer promises it any more."""
    return _ended("lost", node, sandbox, project)


def _ended(what: str, node: str, sandbox: str, project: str) -> bytes:
    return orjson.dumps(
        {"what": what, "node": node, "sandbox": sandbox, "project": project},
        option=orjson.OPT_APPEND_NEWLINE,
    )


def life(node: str, epoch: int) -> bytes:
    """The node has begun a life."""
    return orjson.dumps({"what": "life", "node": node, "epoch": epoch}, option=orjson.OPT_APPEND_NEWLINE)


def started(node: str, sandbox: str, exec_: str, number: int) -> bytes:
    """A command has begun."""
    return orjson.dumps(
        {"what": "exec", "node": node, "sandbox": sandbox, "exec": exec_, "log": number},
        option=orjson.OPT_APPEND_NEWLINE,
    )


@dataclass(slots=True)
class _Entry:
    line: bytes
    synced: asyncio.Future[None]


class Journal:
    """See the module. `past` is what was found, by node; `epoch` the number of this life."""

    def __init__(self, file: int, past: dict[str, Past], epoch: int) -> None:
        self.past = past
        self.epoch = epoch
        self._file = file
        self._entries: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, path: Path) -> AsyncIterator[Journal]:
        """The journal at `path`, made if it is not there. Raises DiskFull, InfraError."""
        with _typed_errors(path):
            past, epoch = await asyncio.to_thread(_rewrite, path)
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        journal = cls(file, past, epoch)
        thread = threading.Thread(target=journal._work, name="sim journal")
        thread.start()
        try:
            yield journal
        finally:
            journal._entries.put(None)
            await asyncio.shield(asyncio.to_thread(thread.join))
            os.close(file)

    def append(self, line: bytes) -> asyncio.Future[None]:
        """Resolved when `line` is on disk; fails with DiskFull, InfraError."""
        synced: asyncio.Future[None] = self._loop.create_future()
        self._entries.put(_Entry(line, synced))
        return synced

    def _work(self) -> None:
        """The thread: one write and one sync for everything that waits."""
        began = 0.0
        while batch := self._batch(began + GATHER):
            began = time.monotonic()
            error = _written(self._file, b"".join(entry.line for entry in batch))
            with contextlib.suppress(RuntimeError):  # the loop was closed over it
                self._loop.call_soon_threadsafe(_tell, batch, error)

    def _batch(self, not_before: float) -> list[_Entry]:
        batch: list[_Entry] = []
        with contextlib.suppress(queue.Empty):
            entry = self._entries.get()
            time.sleep(max(0.0, not_before - time.monotonic()))
            while entry is not None:
                batch.append(entry)
                entry = self._entries.get_nowait()
            if batch:
                self._entries.put(None)
        return batch


def _written(file: int, data: bytes) -> DsecError | None:
    try:
        start = os.lseek(file, 0, os.SEEK_END)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            os.fdatasync(file)
        except OSError:
            os.ftruncate(file, start)  # or the next line would be joined to a torn one
            raise
    except OSError as error:
        return _typed(error, "the simulated nodes' journal")
    return None


def _tell(batch: list[_Entry], error: DsecError | None) -> None:
    for entry in batch:
        if entry.synced.done():
            continue
        if error is None:
            entry.synced.set_result(None)
        else:
            entry.synced.set_exception(error)


def read(path: Path) -> tuple[dict[str, Past], int]:
    """What the journal at `path` acknowledges, by node, and its epoch; nothing when it is not there."""
    past: dict[str, Past] = {}
    epoch = 0
    if not path.exists():
        return past, epoch
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            entry = orjson.loads(line)
            if entry["what"] == "open":
                epoch = entry["epoch"]
            else:
                past.setdefault(entry["node"], Past()).fold(entry)
    return past, epoch


def _rewrite(path: Path) -> tuple[dict[str, Past], int]:
    """`read`, and the file made as short as it can be under the next epoch."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    past, epoch = read(path)
    epoch += 1
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(b'{"what":"open","epoch":%d}\n' % epoch)
        for node, known in past.items():
            file.writelines(known.lines(node))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    return past, epoch


@contextlib.contextmanager
def _typed_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _typed(error, str(path)) from error
    except (orjson.JSONDecodeError, KeyError) as error:
        raise InfraError.during(f"{path} is not a journal of simulated nodes: move it away", error) from error


def _typed(error: OSError, what: str) -> DsecError:
    return (DiskFull if error.errno in _NO_SPACE else InfraError).during(what, error)
