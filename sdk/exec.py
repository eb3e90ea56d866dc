"""A durable handle of one command: a cursor over its log.

`id` and `offset` are all that is needed to go on elsewhere or later: `client.exec(sandbox, id, offset=…)`.
Reading moves `offset`; what one iterator took, the next does not see.
"""

from __future__ import annotations

import base64
import signal as signals
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from dsec.bus.errors import GoneError
from dsec.bus.frames import Frame, Kind
from dsec.sdk.link import Link
from dsec.sdk.result import Result
from dsec.sdk.stream import Reader
from dsec.sdk.text import Decoder, Lines

STDIN_CHUNK: Final = 128 * 1024
STDIN_PATIENCE: Final = 600.0
"""Seconds that a write to standard input waits for a command that does not read."""


class Exec:
    """One command in one sandbox. Made by `Sandbox.start` and `Client.exec`.

    As an asynchronous context manager it closes its reader on leaving; the command goes on.
    """

    def __init__(
        self, link: Link, sandbox: str, exec_id: str, *, first: Frame | None = None, offset: int = 0
    ) -> None:
        self.id = exec_id
        self.sandbox = sandbox
        self._link = link
        self._reader = Reader(link, sandbox, exec_id, first=first, offset=offset)
        self._written = 0 if first is not None else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading; repeatable. The command goes on and its output is kept in the log."""
        await self._reader.close()

    @property
    def offset(self) -> int:
        """Bytes of output (both streams, in the order they were read) that were taken so far."""
        return self._reader.taken

    def __aiter__(self) -> Self:
        """Output of both streams as bytes, as `stream` gives it."""
        return self

    async def __anext__(self) -> bytes:
        piece = await self._reader.next()
        if piece is None:
            raise StopAsyncIteration
        return piece[1]

    async def stream(self) -> AsyncIterator[tuple[Kind, bytes]]:
        """Output as it comes: `(Kind.STDOUT | Kind.STDERR, bytes)`, until the command has ended.

        A consumer that is slow makes the command wait like one that writes to a full pipe.
        Raises NoSuchExec, NoSuchSandbox, NodeLost, BrokerDown, DeadlineExceeded.
        """
        while (piece := await self._reader.next()) is not None:
            yield piece

    async def text(self) -> AsyncIterator[str]:
        """Output of both streams as text; a character split over frames comes whole."""
        decoder = Decoder()
        async for kind, data in self.stream():
            if text := decoder.feed(kind, data):
                yield text
        for rest in decoder.finish().values():
            if rest:
                yield rest

    async def lines(self) -> AsyncIterator[str]:
        """Output line by line, without the line's end; a line is of one stream."""
        decoder, lines = Decoder(), Lines()
        async for kind, data in self.stream():
            for line in lines.feed(kind, decoder.feed(kind, data)):
                yield line
        for kind, rest in decoder.finish().items():
            for line in lines.feed(kind, rest):
                yield line
        for line in lines.finish():
            yield line

    async def wait(self, *, collect: bool = True) -> Result:
        """The end of the command, with the output that nobody took yet (`collect=False`: dropped).

        Raises like `stream`.
        """
        taken: dict[Kind, list[bytes]] = {Kind.STDOUT: [], Kind.STDERR: []}
        while (piece := await self._reader.next()) is not None:
            if collect:
                taken[piece[0]].append(piece[1])
        fold = self._reader.fold
        assert fold.end is not None  # next() returned None
        out, err = (b"".join(taken[kind]) for kind in (Kind.STDOUT, Kind.STDERR))
        return Result.of(self.id, fold.log, fold.end, out, err, truncated=fold.truncated)

    async def write_stdin(self, data: bytes | str, *, eof: bool = False) -> None:
        """Write to the standard input of a command started with `stdin_open=True`, or to its terminal.

        What is written comes once, however often the request is sent. A handle of a command that was started
        elsewhere goes on where the command's input stands at its first write: one writer at a time.
        Returns when the node has taken all of it. Raises NoSuchExec when the command has ended.
        """
        raw = data.encode() if isinstance(data, str) else data
        for at in range(0, len(raw), STDIN_CHUNK) or [0]:
            chunk = raw[at : at + STDIN_CHUNK]
            await self._stdin(chunk, eof=eof and at + STDIN_CHUNK >= len(raw))

    async def close_stdin(self) -> None:
        """End of file for the command, a hang-up for its terminal; repeatable, silent when it has ended."""
        try:
            await self._stdin(b"", eof=True)
        except GoneError:
            return

    async def _stdin(self, chunk: bytes, *, eof: bool) -> None:
        subject = self._link.subject("exec", "stdin", self.sandbox, self.id)
        if self._written is None:  # written to elsewhere, perhaps
            told = await self._link.call(subject, {"offset": 0, "data": "", "eof": False})
            self._written = int(told["offset"])
        body = {"offset": self._written, "data": base64.b64encode(chunk).decode(), "eof": eof}
        await self._link.ask(subject, body, patience=STDIN_PATIENCE)
        self._written += len(chunk)

    async def resize(self, rows: int, columns: int) -> None:
        """The terminal of a command started with `terminal` has another size.

        Raises NoSuchExec when it has ended, SpecError when it has no terminal.
        """
        subject = self._link.subject("exec", "resize", self.sandbox, self.id)
        await self._link.ask(subject, {"rows": rows, "columns": columns})

    async def signal(self, signum: int, *, key: str | None = None) -> None:
        """Send a signal to the command's leader. Raises NoSuchExec when it has ended."""
        await self._signal({"signum": int(signum)}, key)

    async def kill(self, *, key: str | None = None) -> None:
        """End the command with its whole process tree. Raises NoSuchExec when it has ended."""
        await self._signal({"signum": int(signals.SIGKILL), "tree": True}, key)

    async def _signal(self, body: dict[str, int | bool], key: str | None) -> None:
        subject = self._link.subject("exec", "signal", self.sandbox, self.id)
        await self._link.ask(subject, body, op=key)
