"""A command's output on this terminal, and its end as an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

from dsec.bus.errors import GoneError
from dsec.bus.frames import Kind
from dsec.bus.messages import Ended
from dsec.sdk import Exec, Result
from dsec.sdk.cli.output import emit
from dsec.sdk.exec import STDIN_CHUNK
from dsec.sdk.text import Decoder

_NAMES: Final = {Kind.STDOUT: "stdout", Kind.STDERR: "stderr"}
# as coreutils' timeout and the shells have it
_TIMEOUT, _KILLED, _SIGNALLED = 124, 137, 128
PLATFORM_FAILED: Final = 125
"""Exit code when the platform, not the command, is what failed: no command's own by that convention."""


async def follow(running: Exec, *, as_json: bool, interactive: bool = False) -> int:
    """Show output as it comes, until the command has ended; its exit code (124: timeout, 128+N: signal N).

    With `as_json`: an object a piece (`stream`, `text`), and a last one with how it ended.
    """
    feeding = asyncio.create_task(_feed(running)) if interactive else None
    try:
        result = await _shown(running, as_json=as_json)
    finally:
        if feeding is not None:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
    if as_json:
        emit(summary(result))
    elif result.truncated:
        sys.stderr.write("dsec: output past the quota was not captured\n")
    return exit_code(result)


async def _shown(running: Exec, *, as_json: bool) -> Result:
    decoder = Decoder()
    async for kind, data in running.stream():
        if as_json:
            emit({"stream": _NAMES[kind], "text": decoder.feed(kind, data)})
        else:
            target = sys.stdout.buffer if kind is Kind.STDOUT else sys.stderr.buffer
            await asyncio.to_thread(_write, target, data)
    for kind, rest in decoder.finish().items():
        if rest and as_json:
            emit({"stream": _NAMES[kind], "text": rest})
    return await running.wait()


def _write(target: Any, data: bytes) -> None:
    target.write(data)
    target.flush()


async def _feed(running: Exec) -> None:
    """Our standard input to the command's, as it comes."""
    with contextlib.suppress(GoneError):  # the command ended without reading all of it
        async for data in _standard_input():
            await running.write_stdin(data)
        await running.close_stdin()


async def _standard_input() -> AsyncIterator[bytes]:
    """What may block is polled, since a thread that waits for a terminal could not be ended."""
    kind = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(0)):
        while data := await asyncio.to_thread(os.read, 0, STDIN_CHUNK):
            yield data
        return
    reader = asyncio.StreamReader()
    pipe = os.fdopen(os.dup(0), "rb")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        while data := await reader.read(STDIN_CHUNK):
            yield data
    finally:
        transport.close()


def exit_code(result: Result) -> int:
    """The exit code that a shell would tell."""
    if result.ended is Ended.TIMEOUT:
        return _TIMEOUT
    if result.ended in {Ended.OOM, Ended.LOG_QUOTA}:
        return _KILLED
    return _SIGNALLED + (result.signal or 0) if result.code is None else result.code


def summary(result: Result) -> dict[str, Any]:
    """A result as JSON, its output left out."""
    return {
        "exec": result.exec,
        "log": result.log,
        "ended": result.ended,
        "code": result.code,
        "signal": result.signal,
        "truncated": result.truncated,
        "wall_ms": result.wall_ms,
        "cpu_ms": result.cpu_ms,
        "max_rss": result.max_rss,
    }
