"""The journal: reads the history of execs for those entitled to it (`log.fetch`).

The subject that is read is made from the caller's own project, which the broker vouches for: another
project's exec looks like one that never was. Any number run in one queue group.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from dsec.bus import ids, subjects
from dsec.bus.audit import Auditor
from dsec.bus.frames import pack_data, pack_frames
from dsec.bus.handlers import Call, serving, typed
from dsec.bus.host import Context
from dsec.bus.messages import FetchedLog, FetchLog
from dsec.bus.nats.appender import Appender
from dsec.bus.nats.directget import DirectGet
from dsec.bus.transport import Bus
from dsec.plugins.journal.reading import read_page

QUEUE: Final = "journal"
CONCURRENCY: Final = 64
"""Pages held in memory at once, of 768 KiB each at most."""


class Journal:
    """Answers log.fetch."""

    def __init__(self, reader: DirectGet) -> None:
        self._reader = reader

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus, context: Context) -> AsyncIterator[None]:
        async with Appender.running(bus) as appender, DirectGet.running(bus) as reader:
            journal, auditor = cls(reader), Auditor(appender, "journal")
            async with serving(
                bus,
                subjects.served("log", "fetch"),
                auditor.denials(typed(FetchLog, journal.fetch)),
                queue=QUEUE,
                concurrency=CONCURRENCY,
                refused=auditor.refused,
            ):
                yield

    async def fetch(self, call: Call, request: FetchLog) -> bytes:
        """A page of frames, raw. Raises NoSuchExec, BadId."""
        subject = subjects.exec_stream(
            call.address.project,
            ids.check("sandbox", request.sandbox),
            ids.check("exec", request.exec),
        )
        page = await read_page(
            self._reader, subject, offset=request.offset, cursor=request.cursor, max_bytes=request.max_bytes
        )
        header = FetchedLog(cursor=page.cursor, more=page.more)
        return pack_data(header.model_dump_json().encode(), pack_frames(page.frames))
