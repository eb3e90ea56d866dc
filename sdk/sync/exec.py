"""Generated from sdk/exec.py by `make twin`: change that file, not this one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from dsec.bus.frames import Kind
from dsec.sdk.exec import Exec as AsyncExec
from dsec.sdk.result import Result
from dsec.sdk.twin import base as twin


class Exec(twin.Managed[AsyncExec]):
    """One command in one sandbox. Made by `Sandbox.start` and `Client.exec`.

    As a context manager it closes its reader on leaving; the command goes on.
    """

    @property
    def id(self) -> str:
        return self._origin.id

    @property
    def sandbox(self) -> str:
        return self._origin.sandbox

    def close(self) -> None:
        """Stop reading; repeatable. The command goes on and its output is kept in the log."""
        self._portal.call(self._origin.close())

    @property
    def offset(self) -> int:
        """Bytes of output (both streams, in the order they were read) that were taken so far."""
        return self._origin.offset

    def __iter__(self) -> Self:
        """Output of both streams as bytes, as `stream` gives it."""
        return self

    def __next__(self) -> bytes:
        try:
            return self._portal.call(self._origin.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def stream(self) -> Iterator[tuple[Kind, bytes]]:
        """Output as it comes: `(Kind.STDOUT | Kind.STDERR, bytes)`, until the command has ended.

        A consumer that is slow makes the command wait like one that writes to a full pipe.
        Raises NoSuchExec, NoSuchSandbox, NodeLost, BrokerDown, DeadlineExceeded.
        """
        return twin.each(self._portal, self._origin.stream(), twin.same)

    def text(self) -> Iterator[str]:
        """Output of both streams as text; a character split over frames comes whole."""
        return twin.each(self._portal, self._origin.text(), twin.same)

    def lines(self) -> Iterator[str]:
        """Output line by line, without the line's end; a line is of one stream."""
        return twin.each(self._portal, self._origin.lines(), twin.same)

    def wait(self, *, collect: bool = True) -> Result:
        """The end of the command, with the output that nobody took yet (`collect=False`: dropped).

        Raises like `stream`.
        """
        return self._portal.call(self._origin.wait(collect=collect))

    def write_stdin(self, data: bytes | str, *, eof: bool = False) -> None:
        """Write to the standard input of a command started with `stdin_open=True`, or to its terminal.

        What is written comes once, however often the request is sent. A handle of a command that was started
        elsewhere goes on where the command's input stands at its first write: one writer at a time.
        Returns when the node has taken all of it. Raises NoSuchExec when the command has ended.
        """
        self._portal.call(self._origin.write_stdin(data, eof=eof))

    def close_stdin(self) -> None:
        """End of file for the command, a hang-up for its terminal; repeatable, silent when it has ended."""
        self._portal.call(self._origin.close_stdin())

    def resize(self, rows: int, columns: int) -> None:
        """The terminal of a command started with `terminal` has another size.

        Raises NoSuchExec when it has ended, SpecError when it has no terminal.
        """
        self._portal.call(self._origin.resize(rows, columns))

    def signal(self, signum: int, *, key: str | None = None) -> None:
        """Send a signal to the command's leader. Raises NoSuchExec when it has ended."""
        self._portal.call(self._origin.signal(signum, key=key))

    def kill(self, *, key: str | None = None) -> None:
        """End the command with its whole process tree. Raises NoSuchExec when it has ended."""
        self._portal.call(self._origin.kill(key=key))
