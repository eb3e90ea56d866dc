"""The log of one exec: numbers its frames and hands them to the appender.

`offset` is how much output was handed over, `sequence` the number of the next frame. A restarted node goes on
from the last stored record (`after`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dsec.bus.frames import FRAME_VERSION, HEADER, Frame, Kind, pack_parts
from dsec.bus.messages import Ended
from dsec.bus.metrics.figures import Figures
from dsec.bus.metrics.names import EXEC_BYTES, EXECS_ENDED
from dsec.bus.nats.appender import Appender, Stored


@dataclass(slots=True)
class ExecLog:
    """`subject` is the exec's stream subject, `log` its number in the trajectory."""

    appender: Appender
    subject: str
    log: int
    sequence: int = 0
    offset: int = 0
    figures: Figures = field(default_factory=Figures)

    def after(self, last: Frame) -> None:
        """Go on behind the last stored record of a former process."""
        self.sequence = last.sequence + 1
        self.offset = last.offset + last.output

    def inline(self, end: bytes, out: bytes, err: bytes) -> tuple[bytes, Stored]:
        """Everything in one frame, which is also the answer; `end` is an ExecEnd as JSON."""
        raw = self._frame(Kind.INLINE, pack_parts(end, out, err))
        self._took(len(out) + len(err))
        return raw, self.appender.put(self.subject, raw)

    def started(self, meta: bytes, out: bytes, err: bytes) -> tuple[bytes, Stored]:
        """The first frame of a longer exec, which is also the answer."""
        raw = self._frame(Kind.STARTED, pack_parts(meta, out, err))
        self._took(len(out) + len(err))
        return raw, self.appender.put(self.subject, raw)

    async def output(self, kind: Kind, data: bytes) -> Stored:
        """A piece of output, when the node's window has room for it."""
        raw = self._frame(kind, data)
        self._took(len(data))
        return await self.appender.append(self.subject, raw)

    def truncated(self) -> Stored:
        """Output past this offset is not captured."""
        return self.appender.put(self.subject, self._frame(Kind.TRUNCATED, b""))

    def exit(self, end: bytes) -> Stored:
        """The last frame."""
        return self.appender.put(self.subject, self._frame(Kind.EXIT, end))

    def ended(self, how: Ended) -> None:
        """Count the command's end."""
        self.figures.count(EXECS_ENDED, how.value)

    def _took(self, length: int) -> None:
        self.offset += length
        self.figures.count(EXEC_BYTES, by=length)

    def _frame(self, kind: Kind, data: bytes) -> bytes:
        head = HEADER.pack(FRAME_VERSION, kind, 0, self.sequence, self.offset, self.log)
        self.sequence += 1
        return head + data
