"""The exec log on the wire: frames, and the fold that makes live, replayed and recovered output the same.

Frame: `!BBHIQQ` (version, kind, flags, sequence, offset, log) and raw bytes. `offset` is the position of the
frame's first output byte in the exec's log (stdout and stderr in the order they were read); `log` is the
exec's number in its sandbox's journal, the trajectory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from dsec.bus.errors import InfraError, SpecError

HEADER: Final = struct.Struct("!BBHIQQ")
_LENGTH: Final = struct.Struct("!I")
_PARTS: Final = struct.Struct("!II")
FRAME_VERSION: Final = 1
FRAME_BYTES: Final = 32 * 1024
INLINE_BYTES: Final = 32 * 1024


class Kind(IntEnum):
    """STARTED and INLINE carry `pack_parts`: JSON metadata, first stdout and stderr; EXIT metadata only."""

    STARTED = 0
    STDOUT = 1
    STDERR = 2
    TRUNCATED = 3
    EXIT = 4
    INLINE = 5


_KINDS: Final = frozenset(Kind)


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    sequence: int
    offset: int
    log: int
    data: bytes
    flags: int = 0

    def pack(self) -> bytes:
        head = HEADER.pack(FRAME_VERSION, self.kind, self.flags, self.sequence, self.offset, self.log)
        return head + self.data

    @property
    def output(self) -> int:
        """How many bytes of output the frame carries."""
        if self.kind in {Kind.STDOUT, Kind.STDERR}:
            return len(self.data)
        if self.kind in {Kind.STARTED, Kind.INLINE}:
            meta, _ = _PARTS.unpack_from(self.data)
            return len(self.data) - _PARTS.size - int(meta)
        return 0


def unpack(raw: bytes) -> Frame:
    """The frame in `raw`. Raises InfraError when it is not one of this version."""
    if len(raw) < HEADER.size or raw[0] != FRAME_VERSION or raw[1] not in _KINDS:
        raise InfraError("not an exec frame of this version: upgrade the older side")
    _, kind, flags, sequence, offset, log = HEADER.unpack_from(raw)
    return Frame(Kind(kind), sequence, offset, log, raw[HEADER.size :], flags)


def is_frame(raw: bytes) -> bool:
    """Whether an answer is a frame rather than JSON."""
    return raw[:1] == b"\x01"


def pack_parts(meta: bytes, out: bytes, err: bytes) -> bytes:
    """Data of a STARTED or INLINE frame."""
    return b"".join((_PARTS.pack(len(meta), len(out)), meta, out, err))


def unpack_parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Metadata, stdout and stderr of a STARTED or INLINE frame."""
    meta, out = _PARTS.unpack_from(data)
    start = _PARTS.size + meta
    return data[_PARTS.size : start], data[start : start + out], data[start + out :]


def pack_data(header: bytes, data: bytes) -> bytes:
    """A raw message: JSON header with its length before it, then bytes."""
    return b"".join((_LENGTH.pack(len(header)), header, data))


def unpack_data(raw: bytes) -> tuple[bytes, bytes]:
    """Header and bytes of a raw message. Raises SpecError when it is too short to be one."""
    if len(raw) < _LENGTH.size:
        raise SpecError("not a raw message: it has no header")
    (size,) = _LENGTH.unpack_from(raw)
    return raw[4 : 4 + size], raw[4 + size :]


def pack_frames(frames: list[bytes]) -> bytes:
    """Packed frames, each with its length before it."""
    return b"".join(part for raw in frames for part in (_LENGTH.pack(len(raw)), raw))


def unpack_frames(data: bytes) -> Iterator[bytes]:
    """The packed frames in `data`."""
    at = 0
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


@dataclass(slots=True)
class Fold:
    """The reader's rule: only bytes at the expected offset count; less is a duplicate, more a gap to fetch.

    `feed` returns the output that is new as `(kind, bytes)` pieces, or None for a gap.
    """

    expected: int = 0
    end: bytes | None = None
    log: int = 0
    truncated: bool = False

    def feed(self, frame: Frame) -> list[tuple[Kind, bytes]] | None:
        if frame.offset > self.expected:
            return None
        self.log = frame.log
        if frame.kind is Kind.TRUNCATED:
            self.truncated = True
        if frame.kind is Kind.EXIT:
            if frame.offset == self.expected and self.end is None:
                self.end = frame.data
            return []
        pieces = self._new(frame)
        if frame.kind is Kind.INLINE and self.end is None:
            self.end = unpack_parts(frame.data)[0]
        return pieces

    def _new(self, frame: Frame) -> list[tuple[Kind, bytes]]:
        at, pieces = frame.offset, []
        for kind, data in _outputs(frame):
            fresh = data[max(0, self.expected - at) :]
            at += len(data)
            if fresh:
                pieces.append((kind, fresh))
                self.expected = at
        return pieces


def _outputs(frame: Frame) -> list[tuple[Kind, bytes]]:
    if frame.kind in {Kind.STDOUT, Kind.STDERR}:
        return [(frame.kind, frame.data)]
    if frame.kind in {Kind.STARTED, Kind.INLINE}:
        _, out, err = unpack_parts(frame.data)
        return [(Kind.STDOUT, out), (Kind.STDERR, err)]
    return []
