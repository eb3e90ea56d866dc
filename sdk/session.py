"""A session: a shell that keeps directory, environment, functions and background jobs between commands."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal as signals
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from dsec.bus.errors import GoneError
from dsec.bus.frames import unpack
from dsec.bus.ids import check as check_id
from dsec.bus.ids import exec_of
from dsec.sdk.exec import Exec
from dsec.sdk.link import Link, new_operation
from dsec.sdk.result import Result

CLOSING: Final = 2.0
"""Seconds that a shell has to end by itself."""


class Session:
    """Made by `Sandbox.session`; open within `async with`, or from `open` to `close`.

    Each command is an exec of its own, with its output, its exit code and its place in the log. What ends the
    shell (`exit 3`, `exec program`, `set -e`) is the result of the command that did it; whoever runs another
    one is told by SessionEnded. Output of a background job belongs to the command that runs when it comes.
    """

    def __init__(
        self, link: Link, sandbox: str, shell: Exec, body: Mapping[str, Any] | None = None, op: str = ""
    ) -> None:
        self.sandbox = sandbox
        self._link = link
        self._shell = shell
        self._body = body
        self._op = op
        self._turns = asyncio.Lock()

    @property
    def id(self) -> str:
        """With it anybody in the project reaches the session: `Sandbox.session_of`."""
        return self._shell.id

    async def open(self) -> Self:
        """Start the shell; repeatable. Raises NoSuchProgram (also: no such user or cwd), LimitError."""
        if self._body is not None:
            await self._link.ask(
                self._link.subject("exec", "start", self.sandbox), dict(self._body), op=self._op
            )
            self._body = None
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        check: bool = False,
        key: str | None = None,
        log_bytes: int | None = None,
        durable: bool = False,
    ) -> Result:
        """Run shell code to its end; arguments as for `Sandbox.run`. One after the other, as they are called.

        `timeout` ends the command's processes, not those in the background; the session lives on when its
        shell then comes back within a second. `stdin` is the command's alone; None is an empty one.
        `max_rss` of the result is 0: a shell does not tell it.

        Raises SessionEnded, SessionBusy (somebody else runs a command in it), SpecError (a NUL), TooLarge.
        """
        async with self._turns:
            running = await self.start(
                command, timeout=timeout, stdin=stdin, key=key, log_bytes=log_bytes, durable=durable
            )
            async with running:
                result = await running.wait()
        return result.check() if check else result

    async def start(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        key: str | None = None,
        log_bytes: int | None = None,
        detach: bool = False,
        durable: bool = False,
    ) -> Exec:
        """Start shell code, to be streamed or waited for. `signal` goes to what it runs, not to the shell.

        Raises like `run`, SessionBusy also when the former command has not ended.
        """
        given = stdin.encode() if isinstance(stdin, str) else stdin
        body: dict[str, Any] = {"argv": [command], "session": self.id}
        options = {
            "timeout": timeout,
            "stdin": None if given is None else base64.b64encode(given).decode(),
            "log_bytes": log_bytes,
            "detach": detach,
            "durable": durable,
        }
        body.update((name, value) for name, value in options.items() if value)
        op = new_operation() if key is None else check_id("operation", key)
        answer = await self._link.ask(self._link.subject("exec", "start", self.sandbox), body, op=op)
        return Exec(self._link, self.sandbox, exec_of(op), first=unpack(answer))

    async def wait(self) -> Result:
        """How the shell ended, when it has."""
        return await self._shell.wait()

    async def close(self) -> None:
        """End the shell, and everything that runs in it; repeatable, silent when it has ended."""
        if self._body is not None:
            return
        with contextlib.suppress(GoneError):
            await self._shell.signal(signals.SIGHUP)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await self._shell.wait()
            await self._shell.kill()
        await self._shell.close()
