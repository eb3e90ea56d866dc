"""The journal: reads the history of execs for those entitled to it (`log.fetch`).

The subject that is read is made from the caller's own project, which the broker vouches for: another
project's exec looks like one that never was. Any number run in one queue group.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

from dsec.bus import ids, subjects
from dsec.bus.appender import Appender
from dsec.bus.directget import DirectGet
from dsec.bus.errors import BadId, DsecError
from dsec.bus.frames import pack_data, pack_frames
from dsec.bus.handlers import Call, serving, typed
from dsec.bus.host import Context
from dsec.bus.messages import Audit, FetchedLog, FetchLog
from dsec.bus.transport import Bus, Received
from dsec.plugins.journal.reading import read_page

QUEUE: Final = "journal"
CONCURRENCY: Final = 64
"""Pages held in memory at once, of 768 KiB each at most."""


class Journal:
    """Answers log.fetch."""

    def __init__(self, reader: DirectGet, appender: Appender) -> None:
        self._reader = reader
        self._appender = appender

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus, context: Context) -> AsyncIterator[None]:
        async with Appender.running(bus) as appender, DirectGet.running(bus) as reader:
            journal = cls(reader, appender)
            async with serving(
                bus,
                subjects.served("log", "fetch"),
                typed(FetchLog, journal.fetch),
                queue=QUEUE,
                concurrency=CONCURRENCY,
                refused=journal.refused,
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

    def refused(self, message: Received, error: DsecError) -> None:
        """Audit a request that gets no answer."""
        with contextlib.suppress(BadId):  # not even a project to file it under
            who = subjects.parse(message.subject)
            entry = Audit(
                time=int(time.time() * 1000),
                op="log.fetch",
                principal=who.principal,
                subject=message.subject,
                outcome=error.code,
                detail=error.message,
            )
            subject = subjects.audit("journal", "fetch", who.project)
            self._appender.put(subject, entry.model_dump_json().encode())
