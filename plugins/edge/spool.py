"""The spool of one long command: output on its way from the pipe to the log, in a file on tmpfs.

`splice(2)` moves bytes from the pipe into the file in one step, so the file's size is the exact count of
bytes taken, whatever kills the node's process in between. A second file marks where the output changes
between stdout, stderr and truncated: a mark is written before the bytes, and a later mark at the same offset
replaces it. Ranges that are stored in the log are punched out; a restarted node opens the same files.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path
from struct import Struct
from typing import Final, Self

from dsec.bus.frames import Kind
from dsec.plugins.edge.disk import room_for
from dsec.plugins.edge.syscalls import punch

_MARK: Final = Struct("=QB7x")
"""Padded, so that none lies across two pages: where tmpfs is full, a mark is written whole or not at all."""
PAGE: Final = 4096
PUNCH_EVERY: Final = 256 * 1024


class Spool:
    """Open files of one spool; `taken` bytes were spliced in."""

    def __init__(self, base: Path) -> None:
        self._base = base
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with room_for("command output (tmpfs)"):
            self._file = os.open(base.with_suffix(".spool"), flags, 0o600)
            self._marks_file = os.open(base.with_suffix(".marks"), flags | os.O_APPEND, 0o600)
        self.taken = os.lseek(self._file, 0, os.SEEK_END)
        self._offsets: list[int] = []
        self._kinds: list[Kind] = []
        self._punched = 0
        for offset, kind in _MARK.iter_unpack(_whole_marks(self._marks_file)):
            self._note(offset, Kind(kind))

    @classmethod
    def exists(cls, base: Path) -> bool:
        """Whether a former process spooled here."""
        return base.with_suffix(".spool").exists()

    @property
    def truncated(self) -> bool:
        """Whether the end of captured output was marked."""
        return bool(self._kinds) and self._kinds[-1] is Kind.TRUNCATED

    def take(self, kind: Kind, pipe: int, length: int) -> int:
        """Move up to `length` bytes out of `pipe`; 0 at its end or when it is empty. Raises DiskFull."""
        self._mark(kind)
        with room_for("command output (tmpfs)"):
            try:
                moved = os.splice(pipe, self._file, length, offset_dst=self.taken)
            except BlockingIOError:
                return 0
        self.taken += moved
        return moved

    def bring(self, kind: Kind, pipe: int, length: int) -> bytes:
        """Take `length` bytes that are in `pipe`, and give back what was taken."""
        at = self.taken
        taken = self.take(kind, pipe, length) if length else 0
        return os.pread(self._file, taken, at)

    def truncate(self) -> None:
        """Mark that everything from here on is dropped; repeatable."""
        self._mark(Kind.TRUNCATED)

    def frame(self, offset: int, length: int) -> tuple[Kind, bytes]:
        """Bytes at `offset`, at most `length`, of one kind only. At the end there are none."""
        at = bisect_right(self._offsets, offset) - 1
        end = self._offsets[at + 1] if at + 1 < len(self._offsets) else self.taken
        return self._kinds[at], os.pread(self._file, min(length, end - offset), offset)

    def forget(self, offset: int, every: int = PUNCH_EVERY) -> None:
        """Everything before `offset` is stored: give its memory back once that is `every` bytes."""
        page = offset - offset % PAGE
        if self._file >= 0 and page - self._punched >= every:
            punch(self._file, self._punched, page - self._punched)
            self._punched = page
            passed = max(0, bisect_right(self._offsets, page) - 1)
            del self._offsets[:passed], self._kinds[:passed]

    def close(self) -> None:
        """Close; the files stay for a later process. Repeatable."""
        for descriptor in (self._file, self._marks_file):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._marks_file = -1

    def remove(self) -> None:
        """Close and delete."""
        self.close()
        remove(self._base)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mark(self, kind: Kind) -> None:
        if self._kinds and self._kinds[-1] is kind:
            return
        with room_for("command output (tmpfs)"):
            os.write(self._marks_file, _MARK.pack(self.taken, kind))
        self._note(self.taken, kind)

    def _note(self, offset: int, kind: Kind) -> None:
        if self._offsets and self._offsets[-1] == offset:
            self._kinds[-1] = kind
        else:
            self._offsets.append(offset)
            self._kinds.append(kind)


def remove(base: Path) -> None:
    """Delete what may be there of an exec: its spool, and what was fed to its standard input."""
    for suffix in (".spool", ".marks", ".stdin", ".feed"):
        base.with_suffix(suffix).unlink(missing_ok=True)


def _whole_marks(descriptor: int) -> bytes:
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    return data[: len(data) - len(data) % _MARK.size]
