"""One sandbox: commands, files, lifecycle. Requests go straight to its node, whose name is in the id."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, overload

from dsec.bus.errors import DeadlineExceeded, GoneError, NodeLost, NoSuchExec
from dsec.bus.exec_list import ExecInfo, ExecList
from dsec.bus.frames import Kind, is_frame, unpack
from dsec.bus.ids import check, exec_of
from dsec.bus.messages import Layer, Record
from dsec.sdk import ports, transfer
from dsec.sdk.exec import Exec
from dsec.sdk.files import Files
from dsec.sdk.link import Link, new_operation
from dsec.sdk.result import Result
from dsec.sdk.session import Session
from dsec.sdk.spec_args import LimitArgs

SHELL: Final = ("/bin/sh", "-c")
STDIN_AT_ONCE: Final = 256 * 1024
"""Bytes of standard input that travel inside the start request."""
STAT_PATIENCE: Final = 2.0
"""Seconds until the registry is asked instead of the node."""
START_PATIENCE: Final = 60.0
PACK_PATIENCE: Final = 600.0
"""Seconds; a single attempt is short: the node has a repeated request wait for the first."""


class Sandbox:
    """Made by `Client.create`, `Client.sandbox` and `Client.attach`.

    `record` is what its node said last: the spec, the limits as applied, the state.
    """

    def __init__(self, link: Link, record: Record | dict[str, Any]) -> None:
        """`record` as JSON is read when it is first asked for."""
        self.id: str = record["sandbox"] if isinstance(record, dict) else record.sandbox
        self.files = Files(link, self.id)
        self._told = record
        self._link = link
        self._forwards: dict[int, ports.Carriers] = {}

    @property
    def record(self) -> Record:
        if isinstance(self._told, dict):
            self._told = Record.model_validate(self._told)
        return self._told

    @record.setter
    def record(self, record: Record) -> None:
        self._told = record

    def __repr__(self) -> str:
        return f"<Sandbox {self.id} {self.record.state}>"

    # -- commands

    async def run(
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
        given = stdin.encode() if isinstance(stdin, str) else stdin
        streamed = given is not None and len(given) > STDIN_AT_ONCE
        running = await self.start(
            command,
            timeout=timeout,
            cwd=cwd,
            env=env,
            user=user,
            stdin=None if streamed else given,
            stdin_open=streamed,
            key=key,
            log_bytes=log_bytes,
            limits=limits,
            durable=durable,
        )
        async with running:
            if streamed and given is not None:
                result = await _fed(running, given)
            else:
                result = await running.wait()
        return result.check() if check else result

    @overload
    async def start(self, *, key: str | None = None) -> Record: ...

    @overload
    async def start(
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

    async def start(
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
        if command is None:
            return await self._updated("start", {}, key, patience=START_PATIENCE)
        op = new_operation() if key is None else check("operation", key)
        body: dict[str, Any] = {"argv": [*SHELL, command] if isinstance(command, str) else [*command]}
        given = stdin.encode() if isinstance(stdin, str) else stdin
        options = {
            "timeout": timeout,
            "cwd": cwd,
            "env": env and dict(env),
            "user": user,
            "stdin": None if given is None else base64.b64encode(given).decode(),
            "stdin_open": stdin_open,
            "log_bytes": log_bytes,
            "detach": detach,
            "durable": durable,
            "limits": limits and dict(limits),
            "terminal": terminal and {"rows": terminal[0], "columns": terminal[1]},
        }
        body.update((name, value) for name, value in options.items() if value)
        return await self._start(body, op)

    async def _start(self, body: dict[str, Any], op: str) -> Exec:
        exec_id = exec_of(op)
        try:
            answer = await self._link.ask(self._link.subject("exec", "start", self.id), body, op=op)
        except NoSuchExec:  # repeated, and ended so long ago that only the log has it
            return Exec(self._link, self.id, exec_id)
        first = unpack(answer) if is_frame(answer) else None
        if first is not None and first.kind not in {Kind.INLINE, Kind.STARTED}:
            first = None
        return Exec(self._link, self.id, exec_id, first=first)

    async def execs(self, *, running: bool = False) -> AsyncIterator[ExecInfo]:
        """Its commands, of whoever started them, the oldest first; with `running` those that have not ended.

        `Client.exec` makes a handle of any: to read from an offset, signal, write to or wait for.
        """
        subject, after = self._link.subject("exec", "list", self.id), 0
        while True:
            body = {"after": after, "running": running}
            found = ExecList.model_validate(await self._link.call(subject, body))
            for info in found.execs:
                yield info
                after = info.log
            if not found.more:
                return

    # -- sessions

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
        """A shell that stays, within `async with`: `async with s.session() as sh: await sh.run("cd /x")`.

        `shell`: bash, or sh where there is none. `limits` (cpu, memory, pids) are of all that runs in it. The
        same `key` opens the same session. Any number at once.
        """
        op = new_operation() if key is None else check("operation", key)
        options = {"cwd": cwd, "env": env and dict(env), "user": user, "limits": limits and dict(limits)}
        body: dict[str, Any] = {"shell": shell or ""}
        body.update((name, value) for name, value in options.items() if value)
        return Session(self._link, self.id, Exec(self._link, self.id, exec_of(op)), body, op)

    def session_of(self, session_id: str) -> Session:
        """A session that was opened earlier, or elsewhere. Raises BadId."""
        return Session(self._link, self.id, Exec(self._link, self.id, check("exec", session_id)))

    # -- ports

    def port(self, port: int, *, local: int = 0) -> contextlib.AbstractAsyncContextManager[str]:
        """The URL of a server inside, for `async with`: `http://127.0.0.1:…`, here at port `local` if given.

        Any TCP will do. Each connection is carried over the bus; one to a port on which nothing listens is
        broken off.
        """
        return ports.forwarded(self._link, self.id, port, local)

    async def url(self, port: int) -> str:
        """As `port`, good until the client is closed; the same each time."""
        if port not in self._forwards:
            self._forwards[port] = carriers = ports.Carriers(self._link, self.id, port)
            await carriers.listen()
        return self._forwards[port].url

    async def connect(
        self, port: int, *, within: float = 0.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to TCP `port` inside, on 127.0.0.1 or ::1. `within`: seconds (up to 5) to wait for
        somebody who listens.

        Raises PortClosed, LimitError (too many at once), Unsupported. Reading raises NoSuchConnection or
        ConnectionResetError when it is broken off.
        """
        return await ports.Carriers(self._link, self.id, port).connect(within)

    async def wait_port(self, port: int, *, path: str | None = None, timeout: float = 30.0) -> None:
        """Return when somebody listens, and with `path` answers `GET path` with a status of 200 to 399.

        Raises PortClosed after `timeout` seconds.
        """
        await ports.wait_port(self._link, self.id, port, path, timeout)

    # -- files

    async def upload(self, local: str | os.PathLike[str], remote: str) -> None:
        """A local file to path `remote`, or a directory with all it holds into directory `remote`.

        Raises UnsafeArchive for a device, socket or pipe, NoSuchFile, DiskFull.
        """
        await transfer.upload(self.files, Path(local), remote)

    async def download(self, remote: str, local: str | os.PathLike[str]) -> None:
        """A file or a directory to path `local`, which must not be a directory yet; appears whole or not at
        all.

        Raises UnsafeArchive for what would leave `local` or is neither file, directory nor link inside it.
        """
        await transfer.download(self.files, remote, Path(local))

    async def upload_tar(self, archive: IO[bytes], remote: str) -> None:
        """Unpack a tar (plain or compressed) into directory `remote`.

        Raises UnsafeArchive, naming the member and before anything is written, for names that leave `remote`,
        members below or in place of a symbolic link, hard links and devices; SpecError for what is not a tar.
        """
        await transfer.upload_tar(self.files, archive, remote)

    async def download_tar(self, remote: str, into: IO[bytes] | None = None) -> bytes:
        """Directory `remote` as an uncompressed tar: written to `into`, or returned. Raises as `download`."""
        return await transfer.download_tar(self.files, remote, into)

    # -- lifecycle

    async def stat(self) -> Record:
        """The record as its node has it now, or else as the registry has it: `unknown`, or `failed` (infra).

        Raises NoSuchSandbox, NodeLost.
        """
        self.record = await stat(self._link, self.id)
        return self.record

    async def pause(self, *, resume_on_request: bool = True, key: str | None = None) -> Record:
        """Freeze every process and give memory back where the kernel can; repeatable.

        The next command, file request or connection resumes it, unless `resume_on_request` is false: then
        they are refused until `resume`. A pause of its whole job is of that kind. Raises Unsupported,
        NoSuchSandbox.
        """
        return await self._updated("pause", {"resume_on_request": resume_on_request}, key)

    async def resume(self, *, key: str | None = None) -> Record:
        """Go on where `pause` stopped; repeatable. Raises Unsupported, NoSuchSandbox."""
        return await self._updated("resume", {}, key)

    async def stop(self, *, grace: float = 0.0, key: str | None = None) -> Record:
        """End everything inside and keep what it has written; repeatable.

        Commands are asked to end (SIGTERM) and have `grace` seconds, then they are killed, and their results
        tell so. A stopped sandbox gives cores and memory back to its node. Raises SpecError, NoSuchSandbox.
        """
        return await self._updated("stop", {"grace": grace}, key, patience=self._link.patience + grace)

    async def renew(self, ttl: float, *, key: str | None = None) -> Record:
        """Destroyed `ttl` seconds from now instead. Raises SpecError, NoSuchSandbox."""
        return await self._updated("renew", {"ttl": ttl}, key)

    async def pack(self, name: str, paths: Sequence[str] | None = None, *, key: str | None = None) -> Layer:
        """The writable layer as layer `name`, verified and in the catalog; `paths` (absolute): only what is
        below.

        Raises Conflict (the name holds other content), SpecError, DiskFull, NoSuchSandbox.
        """
        body: dict[str, Any] = {"name": name}
        if paths is not None:
            body["paths"] = list(paths)
        subject = self._link.subject("sandbox", "pack", self.id)
        answer = await self._link.call(subject, body, op=key, patience=PACK_PATIENCE)
        return Layer.model_validate(answer)

    async def destroy(self, *, key: str | None = None) -> None:
        """Nothing of it is left on its node on return; repeatable. Raises NodeLost, BrokerDown."""
        subject = self._link.subject("sandbox", "destroy", self.id)
        await self._link.ask(subject, {}, op=key, patience=60.0)

    async def _updated(
        self, verb: str, body: dict[str, Any], key: str | None = None, *, patience: float | None = None
    ) -> Record:
        subject = self._link.subject("sandbox", verb, self.id)
        answer = await self._link.call(subject, body, op=key, patience=patience)
        self.record = Record.model_validate(answer)
        return self.record


async def stat(link: Link, sandbox: str) -> Record:
    """See Sandbox.stat."""
    subject = link.subject("sandbox", "stat", sandbox)
    try:
        return Record.model_validate(await link.call(subject, {}, patience=min(STAT_PATIENCE, link.patience)))
    except (NodeLost, DeadlineExceeded):
        record = await link.record(sandbox)
        if record is None:
            raise
        return record


async def _fed(running: Exec, stdin: bytes) -> Result:
    """Write standard input while reading output, as either may wait for the other."""

    async def feed() -> None:
        with contextlib.suppress(GoneError):  # it ended without reading all of it
            await running.write_stdin(stdin, eof=True)

    feeding = asyncio.create_task(feed())
    try:
        result = await running.wait()
        if feeding.done():
            feeding.result()
        return result
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
