"""Pages of one exec's log, out of the stream EXEC by Direct Get: no consumer, cost as the page is long.

Nodes re-append what may not have been stored, so a frame can stand in the stream more than once; the reader's
fold drops the doubles. What a node has un-acked is bounded, which bounds how far frames can be out of order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsec.bus import frames
from dsec.bus.errors import NoSuchExec
from dsec.bus.nats.directget import DirectGet, Stored

STREAM: Final = "EXEC"
COUNT: Final = 1000
"""Frames of one page, at most."""
DISORDER: Final = 1 << 20
"""Bytes by which a frame may stand after a later one: four times a node's un-acked window."""
_WORTH_A_SEARCH: Final = 8 << 20
"""An offset beyond so many bytes is looked for by bisection; a shorter log is walked."""


@dataclass(frozen=True, slots=True)
class Page:
    """Packed frames in the order of the stream; `cursor` is the sequence to continue at."""

    frames: list[bytes]
    cursor: int
    more: bool


async def read_page(reader: DirectGet, subject: str, *, offset: int, cursor: int, max_bytes: int) -> Page:
    """The next frames of `subject` from `cursor` on, without output that ends before `offset`.

    Raises NoSuchExec when a read from the start finds nothing, BrokerDown, DeadlineExceeded.
    """
    start = cursor
    if not cursor and offset > _WORTH_A_SEARCH:
        start = await locate(reader, subject, offset - DISORDER)
    room = max_bytes
    kept: list[bytes] = []
    while True:
        batch = await reader.whole(STREAM, subject, start, count=COUNT, max_bytes=room)
        if not batch.messages and not start:
            raise NoSuchExec("no such exec in this project, or its output has expired", field="exec")
        for stored in batch.messages:
            if is_needed(frames.unpack(stored.data), offset):
                room -= len(stored.data) + 4
                if kept and room < 0:
                    return Page(kept, stored.sequence, more=True)
                kept.append(stored.data)
            start = stored.sequence + 1
        more = batch.pending > 0 and bool(batch.messages)
        if kept or not more:
            return Page(kept, start, more)


async def locate(reader: DirectGet, subject: str, offset: int) -> int:
    """A sequence of the stream at which reading finds every frame that has output from `offset` on.

    Offsets rise with the sequence, but for re-appended frames; the caller allows for those by `DISORDER`.
    """
    first, last = await reader.next(STREAM, subject, 1), await reader.last(STREAM, subject)
    if first is None or last is None:
        return 0
    low, high = first.sequence, last.sequence  # the frame at `low` begins at or before `offset`
    while low + 1 < high:
        middle = await reader.next(STREAM, subject, (low + high) // 2)
        if middle is None or middle.sequence > high or _offset(middle) > offset:
            high = (low + high) // 2
        else:
            low = middle.sequence
    return low


def is_needed(frame: frames.Frame, offset: int) -> bool:
    """False for a frame whose only worth is output before `offset`."""
    if frame.kind in {frames.Kind.TRUNCATED, frames.Kind.EXIT, frames.Kind.INLINE}:
        return True
    return offset == 0 or frame.offset + frame.output > offset


def _offset(stored: Stored) -> int:
    return frames.unpack(stored.data).offset
