"""The audit trail: who asked for what, and how it ended; appended to AUDIT, where nothing can be deleted."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import orjson

from dsec.bus import operation, subjects
from dsec.bus.errors import BadId, DsecError
from dsec.bus.handlers import Call, Handler
from dsec.bus.nats.appender import Appender
from dsec.bus.transport import Received


class Auditor:
    """Writes as `writer`, the part whose credential `appender` has. Nothing here waits for the broker."""

    def __init__(self, appender: Appender, writer: str) -> None:
        self._appender = appender
        self._writer = writer

    def note(
        self, who: subjects.Address, subject: str, *, outcome: str, target: str = "", detail: str = ""
    ) -> None:
        """One entry; `outcome` is `ok` or an error code."""
        entry: dict[str, Any] = {  # messages.Audit: as a dictionary, since each create has two of them
            "time": int(time.time() * 1000),
            "op": f"{who.noun}.{who.verb}",
            "principal": who.principal,
            "subject": subject,
            "target": target,
            "outcome": outcome,
            "detail": detail,
        }
        if trace := operation.trace():
            entry["trace"] = trace
        self._appender.put(subjects.audit(self._writer, who.verb, who.project), orjson.dumps(entry))

    def denials(self, handler: Handler) -> Handler:
        """Middleware: one entry for each call that `handler` refuses."""

        async def handle(call: Call) -> bytes | None:
            try:
                return await handler(call)
            except DsecError as error:
                self.note(call.address, call.subject, outcome=error.code, detail=error.message)
                raise

        return handle

    def refused(self, message: Received, error: DsecError) -> None:
        """One entry for a request that gets no answer (`handlers.serving`)."""
        with contextlib.suppress(BadId):  # not even a project to file it under
            who = subjects.parse(message.subject)
            self.note(who, message.subject, outcome=error.code, detail=error.message)
