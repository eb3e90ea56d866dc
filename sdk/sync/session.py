"""Generated from sdk/session.py by `make twin`: change that file, not this one."""

from __future__ import annotations

from typing import Self

from dsec.sdk.result import Result
from dsec.sdk.session import Session as AsyncSession
from dsec.sdk.sync.exec import Exec
from dsec.sdk.twin import base as twin


class Session(twin.Managed[AsyncSession]):
    """Made by `Sandbox.session`; open within `with`, or from `open` to `close`.

    Each command is an exec of its own, with its output, its exit code and its place in the log. What ends the
    shell (`exit 3`, `exec program`, `set -e`) is the result of the command that did it; whoever runs another
    one is told by SessionEnded. Output of a background job belongs to the command that runs when it comes.
    """

    @property
    def sandbox(self) -> str:
        return self._origin.sandbox

    @property
    def id(self) -> str:
        """With it anybody in the project reaches the session: `Sandbox.session_of`."""
        return self._origin.id

    def open(self) -> Self:
        """Start the shell; repeatable. Raises NoSuchProgram (also: no such user or cwd), LimitError."""
        self._portal.call(self._origin.open())
        return self

    def run(
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
        return self._portal.call(
            self._origin.run(
                command,
                timeout=timeout,
                stdin=stdin,
                check=check,
                key=key,
                log_bytes=log_bytes,
                durable=durable,
            )
        )

    def start(
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
        return Exec(
            self._portal,
            self._portal.call(
                self._origin.start(
                    command,
                    timeout=timeout,
                    stdin=stdin,
                    key=key,
                    log_bytes=log_bytes,
                    detach=detach,
                    durable=durable,
                )
            ),
        )

    def wait(self) -> Result:
        """How the shell ended, when it has."""
        return self._portal.call(self._origin.wait())

    def close(self) -> None:
        """End the shell, and everything that runs in it; repeatable, silent when it has ended."""
        self._portal.call(self._origin.close())
