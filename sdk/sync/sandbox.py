"""Generated from sdk/sandbox.py by `make twin`: change that file, not this one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any, overload

from dsec.bus.exec_list import ExecInfo
from dsec.bus.messages import Layer, Record
from dsec.sdk.exec import Exec as AsyncExec
from dsec.sdk.result import Result
from dsec.sdk.sandbox import Sandbox as AsyncSandbox
from dsec.sdk.spec_args import LimitArgs
from dsec.sdk.sync.exec import Exec
from dsec.sdk.sync.files import Files
from dsec.sdk.sync.session import Session
from dsec.sdk.twin import base as twin


class Sandbox(twin.Twin[AsyncSandbox]):
    """Made by `Client.create`, `Client.sandbox` and `Client.attach`.

    `record` is what its node said last: the spec, the limits as applied, the state.
    """

    @property
    def id(self) -> str:
        return self._origin.id

    @property
    def files(self) -> Files:
        return Files(self._portal, self._origin.files)

    @property
    def record(self) -> Record:
        return self._origin.record

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        check: bool = False,
        key: str | None = None,
        log_bytes: int | None = None,
        limits: LimitArgs | None = None,
        durable: bool = False,
    ) -> Result:
        """Run a command to its end. A string goes to `/bin/sh -c`, a sequence is executed as it is.

        `timeout` (seconds) kills the whole process tree; `stdin` None is an immediate end of file;
        `log_bytes` bounds what is captured; `limits` (cpu, memory, pids) are of this command alone, and the
        result tells them as they were applied; `durable` waits until the result is stored; `key` runs it once
        however often it is asked. What the command did is the Result; with `check` anything but exit code 0
        raises CommandFailed. Cancelling leaves the command running.

        Raises NoSuchProgram, NoSuchSandbox, LimitError, AgentCrippled, SpecError, TooLarge, NodeLost,
        BrokerDown.
        """
        return self._portal.call(
            self._origin.run(
                command,
                timeout=timeout,
                cwd=cwd,
                env=env,
                user=user,
                stdin=stdin,
                check=check,
                key=key,
                log_bytes=log_bytes,
                limits=limits,
                durable=durable,
            )
        )

    @overload
    def start(self, *, key: str | None = None) -> Record: ...
    @overload
    def start(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        stdin_open: bool = False,
        key: str | None = None,
        log_bytes: int | None = None,
        detach: bool = False,
        durable: bool = False,
        terminal: tuple[int, int] | None = None,
        limits: LimitArgs | None = None,
    ) -> Exec: ...
    def start(
        self,
        command: str | Sequence[str] | None = None,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        stdin_open: bool = False,
        key: str | None = None,
        log_bytes: int | None = None,
        detach: bool = False,
        durable: bool = False,
        terminal: tuple[int, int] | None = None,
        limits: LimitArgs | None = None,
    ) -> Exec | Record:
        """Start a command; arguments as for `run`. Its id is known and durable on return.

        `terminal` (rows, columns): it runs on one; both streams come as stdout, `Exec.write_stdin` is the
        keyboard, `Exec.resize` changes the size, `Exec.close_stdin` hangs up.

        `stdin_open` keeps standard input open for `Exec.write_stdin`. `detach` returns as soon as the
        command is forked and lets it run without a reader: all its output goes to the log. Raises like
        `run`.

        Without a command: the sandbox itself, which was stopped, with all that was written; repeatable.
        Raises NoCapacity (its node has no room for it now), SpecError, NoSuchSandbox.
        """
        origin: Any = self._origin
        made = self._portal.call(
            origin.start(
                command,
                timeout=timeout,
                cwd=cwd,
                env=env,
                user=user,
                stdin=stdin,
                stdin_open=stdin_open,
                key=key,
                log_bytes=log_bytes,
                detach=detach,
                durable=durable,
                terminal=terminal,
                limits=limits,
            )
        )
        return Exec(self._portal, made) if isinstance(made, AsyncExec) else made

    def execs(self, *, running: bool = False) -> Iterator[ExecInfo]:
        """Its commands, of whoever started them, the oldest first; with `running` those that have not ended.

        `Client.exec` makes a handle of any: to read from an offset, signal, write to or wait for.
        """
        return twin.each(self._portal, self._origin.execs(running=running), twin.same)

    def session(
        self,
        shell: str | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        limits: LimitArgs | None = None,
        key: str | None = None,
    ) -> Session:
        """A shell that stays, within `with`: `with s.session() as sh: sh.run("cd /x")`.

        `shell`: bash, or sh where there is none. `limits` (cpu, memory, pids) are of all that runs in it. The
        same `key` opens the same session. Any number at once.
        """
        return Session(
            self._portal, self._origin.session(shell, cwd=cwd, env=env, user=user, limits=limits, key=key)
        )

    def session_of(self, session_id: str) -> Session:
        """A session that was opened earlier, or elsewhere. Raises BadId."""
        return Session(self._portal, self._origin.session_of(session_id))

    def port(self, port: int, *, local: int = 0) -> AbstractContextManager[str]:
        """The URL of a server inside, for `with`: `http://127.0.0.1:…`, here at port `local` if given.

        Any TCP will do. Each connection is carried over the bus; one to a port on which nothing listens is
        broken off.
        """
        return twin.block(self._portal, self._origin.port(port, local=local), twin.same)

    def url(self, port: int) -> str:
        """As `port`, good until the client is closed; the same each time."""
        return self._portal.call(self._origin.url(port))

    def wait_port(self, port: int, *, path: str | None = None, timeout: float = 30.0) -> None:
        """Return when somebody listens, and with `path` answers `GET path` with a status of 200 to 399.

        Raises PortClosed after `timeout` seconds.
        """
        self._portal.call(self._origin.wait_port(port, path=path, timeout=timeout))

    def upload(self, local: str | os.PathLike[str], remote: str) -> None:
        """A local file to path `remote`, or a directory with all it holds into directory `remote`.

        Raises UnsafeArchive for a device, socket or pipe, NoSuchFile, DiskFull.
        """
        self._portal.call(self._origin.upload(local, remote))

    def download(self, remote: str, local: str | os.PathLike[str]) -> None:
        """A file or a directory to path `local`, which must not be a directory yet; appears whole or not at
        all.

        Raises UnsafeArchive for what would leave `local` or is neither file, directory nor link inside it.
        """
        self._portal.call(self._origin.download(remote, local))

    def upload_tar(self, archive: IO[bytes], remote: str) -> None:
        """Unpack a tar (plain or compressed) into directory `remote`.

        Raises UnsafeArchive, naming the member and before anything is written, for names that leave `remote`,
        members below or in place of a symbolic link, hard links and devices; SpecError for what is not a tar.
        """
        self._portal.call(self._origin.upload_tar(archive, remote))

    def download_tar(self, remote: str, into: IO[bytes] | None = None) -> bytes:
        """Directory `remote` as an uncompressed tar: written to `into`, or returned. Raises as `download`."""
        return self._portal.call(self._origin.download_tar(remote, into))

    def stat(self) -> Record:
        """The record as its node has it now, or else as the registry has it: `unknown`, or `failed` (infra).

        Raises NoSuchSandbox, NodeLost.
        """
        return self._portal.call(self._origin.stat())

    def pause(self, *, resume_on_request: bool = True, key: str | None = None) -> Record:
        """Freeze every process and give memory back where the kernel can; repeatable.

        The next command, file request or connection resumes it, unless `resume_on_request` is false: then
        they are refused until `resume`. A pause of its whole job is of that kind. Raises Unsupported,
        NoSuchSandbox.
        """
        return self._portal.call(self._origin.pause(resume_on_request=resume_on_request, key=key))

    def resume(self, *, key: str | None = None) -> Record:
        """Go on where `pause` stopped; repeatable. Raises Unsupported, NoSuchSandbox."""
        return self._portal.call(self._origin.resume(key=key))

    def stop(self, *, grace: float = 0.0, key: str | None = None) -> Record:
        """End everything inside and keep what it has written; repeatable.

        Commands are asked to end (SIGTERM) and have `grace` seconds, then they are killed, and their results
        tell so. A stopped sandbox gives cores and memory back to its node. Raises SpecError, NoSuchSandbox.
        """
        return self._portal.call(self._origin.stop(grace=grace, key=key))

    def renew(self, ttl: float, *, key: str | None = None) -> Record:
        """Destroyed `ttl` seconds from now instead. Raises SpecError, NoSuchSandbox."""
        return self._portal.call(self._origin.renew(ttl, key=key))

    def pack(self, name: str, paths: Sequence[str] | None = None, *, key: str | None = None) -> Layer:
        """The writable layer as layer `name`, verified and in the catalog; `paths` (absolute): only what is
        below.

        Raises Conflict (the name holds other content), SpecError, DiskFull, NoSuchSandbox.
        """
        return self._portal.call(self._origin.pack(name, paths, key=key))

    def destroy(self, *, key: str | None = None) -> None:
        """Nothing of it is left on its node on return; repeatable. Raises NodeLost, BrokerDown."""
        self._portal.call(self._origin.destroy(key=key))
