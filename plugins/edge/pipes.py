"""The two output pipes of a command: what they hold, looked at without taking it.

`peek` copies by tee(2): the bytes stay in the pipe until the record that carries them is stored, so a node
killed in between finds them there again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dsec.bus.frames import Kind
from dsec.plugins.edge.syscalls import closed, tee, waiting

_SCRATCH_BYTES: Final = 1 << 20
DROP_BYTES: Final = 1 << 20


class Scratch:
    """A pipe that `peek` copies into; one serves all commands of a node, since each use is synchronous."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write

    @classmethod
    @contextlib.contextmanager
    def opened(cls) -> Iterator[Scratch]:
        read, write = os.pipe()
        try:
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _SCRATCH_BYTES)
            yield cls(read, write)
        finally:
            os.close(read)
            os.close(write)

    def peek(self, pipe: int, length: int) -> bytes:
        """The first `length` bytes in `pipe`, which must hold them."""
        if length == 0:
            return b""
        copied = tee(pipe, self._write, length)
        return os.read(self._read, copied) if copied else b""


@dataclass(slots=True)
class Pipe:
    """One output pipe; `ended` once it is empty and nobody can write into it.

    Of a pipe that outlives its command (a session's), `cut` says which bytes are the command's: `left` of
    them are still there, and behind them `stray` ones are nobody's.
    """

    kind: Kind
    descriptor: int
    ended: bool = False
    left: int | None = None
    stray: int = 0

    def waiting(self, *, abandoned: bool = False) -> int:
        """Bytes in the pipe; 0 also ends it when it is closed, or `abandoned`: all writers were killed."""
        if self.ended:
            return 0
        if self.left is not None:
            self.ended = self.left == 0
            return min(self.left, waiting(self.descriptor))
        shut = abandoned or closed(self.descriptor)
        count = waiting(self.descriptor)
        self.ended = shut and count == 0
        return count

    def took(self, length: int) -> None:
        """So many bytes were moved out of the pipe."""
        if self.left is not None:
            self.left -= length

    def drop(self) -> None:
        """Throw away what is in the pipe."""
        with contextlib.suppress(BlockingIOError):
            most = DROP_BYTES if self.left is None else min(DROP_BYTES, self.left)
            self.took(len(os.read(self.descriptor, most)))

    def cut(self) -> None:
        """What comes from now on is not the command's; a second time: what has come since is nobody's."""
        count = waiting(self.descriptor)
        if self.left is None:
            self.left = count
        else:
            self.stray = max(0, count - self.left)

    def clear(self) -> None:
        """Throw away what was the command's, and what is nobody's."""
        rest, self.left, self.stray = (self.left or 0) + self.stray, 0, 0
        with contextlib.suppress(BlockingIOError):
            while rest > 0 and (dropped := len(os.read(self.descriptor, min(rest, DROP_BYTES)))):
                rest -= dropped


class Pipes:
    """Standard output and error of one command."""

    def __init__(self, out: int, err: int) -> None:
        self.out = Pipe(Kind.STDOUT, out)
        self.err = Pipe(Kind.STDERR, err)
        self._turn = False

    def sizes(self) -> tuple[int, int]:
        """Bytes in standard output and error."""
        return self.out.waiting(), self.err.waiting()

    def shut(self) -> bool:
        """Whether nothing more can come, whatever the pipes still hold."""
        return all(pipe.left is not None or closed(pipe.descriptor) for pipe in (self.out, self.err))

    def cut(self) -> None:
        """See Pipe."""
        self.out.cut()
        self.err.cut()

    def clear(self) -> None:
        """See Pipe."""
        self.out.clear()
        self.err.clear()

    @property
    def ended(self) -> bool:
        return self.out.ended and self.err.ended

    def unended(self) -> list[Pipe]:
        """Those from which something may still come."""
        return [pipe for pipe in (self.out, self.err) if not pipe.ended]

    def in_turn(self) -> tuple[Pipe, Pipe]:
        """Both, each first every other time: neither starves."""
        self._turn = not self._turn
        return (self.out, self.err) if self._turn else (self.err, self.out)
