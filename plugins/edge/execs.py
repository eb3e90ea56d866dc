"""Requests about commands: start, stdin, signal, credit."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import time
from pathlib import Path
from typing import Final

from dsec.bus import subjects
from dsec.bus.chronus.guest import Command, Exec
from dsec.bus.errors import (
    DeadlineExceeded,
    DiskFull,
    DsecError,
    GoneError,
    LimitError,
    NoSuchExec,
    SpecError,
)
from dsec.bus.frames import FRAME_VERSION, HEADER, Kind, pack_parts
from dsec.bus.handlers import Call, ok
from dsec.bus.ids import exec_of
from dsec.bus.messages import GrantCredit, SignalExec, StartExec, WriteStdin
from dsec.bus.nats.appender import Stored
from dsec.plugins.edge.admission import DEFAULT_LOG_BYTES
from dsec.plugins.edge.budget import AHEAD
from dsec.plugins.edge.descriptors import room_for_command
from dsec.plugins.edge.execlog import ExecLog
from dsec.plugins.edge.figures import figures_of
from dsec.plugins.edge.leader import SIGKILL
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.running import Running
from dsec.plugins.edge.sandboxes import Sandbox
from dsec.plugins.edge.spool import remove
from dsec.plugins.edge.trajectory import Entry

STDIN_WAIT: Final = 30.0
"""Seconds that a write waits for a command that does not read, at most."""
ROOM: Final = 2 * AHEAD
ROOM_FILES: Final = 8
"""What tmpfs must have free for a command to be started: bytes, and files."""
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Execs:
    """Handlers of `exec.*` for one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def start(self, call: Call, request: StartExec) -> bytes:
        """A packed frame: INLINE with everything, or STARTED with the first output.

        Raises NoSuchSandbox, NoSuchProgram, LimitError, AgentCrippled, SpecError, DiskFull.
        """
        sandbox = self._node.sandboxes.get(call.address.sandbox, call.address.project)
        exec_ = exec_of(request.op)
        first = sandbox.starting.get(exec_)
        if first is not None:
            return await asyncio.shield(first)
        if exec_ in sandbox.logs:
            return again(exec_, sandbox.logs[exec_])
        sandbox.starting[exec_] = first = asyncio.get_running_loop().create_future()
        try:
            answer = await self._start(sandbox, exec_, request)
        except BaseException as error:
            first.set_exception(error if isinstance(error, Exception) else GoneError("the node is stopping"))
            first.exception()  # seen: the caller gets it here
            raise
        else:
            first.set_result(answer)
            return answer
        finally:
            del sandbox.starting[exec_]

    async def _start(self, sandbox: Sandbox, exec_: str, request: StartExec) -> bytes:
        guest = sandbox.inside()
        data = stdin_of(request)
        room_for_command(len(sandbox.running) + len(sandbox.starting) - 1)
        room_to_run(sandbox.spools, len(data or b""))
        entry = self._entry(sandbox, exec_, request)
        sandbox.trajectory.start(entry)
        try:
            command = await guest.start(exec_, self._command(sandbox, request, stdin=data is not None))
            sandbox.logs[exec_] = entry.log
            answer, stored = await self._begin(sandbox, entry, command, data)
        except DsecError:
            sandbox.trajectory.failed(exec_)
            sandbox.logs.pop(exec_, None)
            raise
        if request.durable:
            await asyncio.shield(stored)
        return answer

    async def _begin(
        self, sandbox: Sandbox, entry: Entry, command: Exec, data: bytes | None
    ) -> tuple[bytes, Stored]:
        """The answer and its record; the command is ended when this raises DiskFull or InfraError."""
        try:
            running = self.run(sandbox, entry, command)
            if running.stdin is not None:
                running.stdin.keep(data or b"")
        except DiskFull:
            sandbox.running.pop(entry.exec, None)
            await command.release()
            remove(sandbox.spools / entry.exec)
            raise
        if running.stdin is not None:
            feed = running.stdin.feed(data or b"", eof=not entry.stdin_open)
            self._node.tasks.spawn(feed, f"stdin of {entry.exec}")
        return await running.begin()

    def run(self, sandbox: Sandbox, entry: Entry, command: Exec) -> Running:
        """Have `command` among the sandbox's running ones until it is released."""
        subject = subjects.exec_stream(sandbox.record.project, sandbox.id, entry.exec)
        log = ExecLog(self._node.appender, subject, entry.log, figures=figures_of(self._node))
        base = sandbox.spools / entry.exec
        running = Running(
            entry, command, log, base, sandbox.desk, lambda: sandbox.running.pop(entry.exec, None)
        )
        sandbox.running[entry.exec] = running
        return running

    def _entry(self, sandbox: Sandbox, exec_: str, request: StartExec) -> Entry:
        quota = quota_of(request.log_bytes, sandbox.record.applied.log_bytes or DEFAULT_LOG_BYTES)
        return Entry(
            log=sandbox.trajectory.take_number(),
            exec=exec_,
            argv=list(request.argv),
            started=time.time(),
            timeout=request.timeout,
            quota=quota,
            detach=request.detach,
            stdin_open=request.stdin_open,
        )

    def _command(self, sandbox: Sandbox, request: StartExec, *, stdin: bool) -> Command:
        return Command(
            argv=request.argv,
            cwd=request.cwd or "/",
            env={"PATH": PATH, **sandbox.env, **request.env},
            user=request.user or sandbox.record.spec.user,
            stdin=stdin,
        )

    async def stdin(self, call: Call, request: WriteStdin) -> bytes:
        """Write to the command's standard input; bytes before the offset that was reached are dropped.

        Raises DeadlineExceeded when the command does not read; what it took counts.
        """
        running = self._running(call)
        stdin = running.stdin
        if stdin is None:
            raise SpecError("the command was started without stdin_open", field="stdin_open")
        try:
            async with asyncio.timeout(min(STDIN_WAIT, request.deadline / 1000 - time.time())):
                await stdin.write(request.offset, decoded(request.data, "data"))
        except TimeoutError:
            raise DeadlineExceeded(
                f"the command does not read its stdin; it took {stdin.offset} bytes", field="deadline"
            ) from None
        if request.eof:
            await stdin.end()
        return ok({"offset": stdin.offset})

    async def signal(self, call: Call, request: SignalExec) -> bytes:
        """Signal the leader, or kill the tree."""
        running = self._running(call)
        if not request.tree:
            await running.leader.command.signal(request.signum)
        elif request.signum == SIGKILL:
            await running.leader.command.kill_tree()
        else:
            raise SpecError("only SIGKILL reaches a whole tree", field="signum")
        return ok()

    async def credit(self, call: Call, request: GrantCredit) -> bytes:
        """The reader takes output up to an absolute offset; for an ended command there is nothing to hold."""
        sandbox = self._node.sandboxes.get(call.address.sandbox, call.address.project)
        running = sandbox.running.get(call.address.exec)
        if running is not None:
            running.grant(request.offset, request.lease)
        elif call.address.exec not in sandbox.logs:
            raise NoSuchExec(f"no exec {call.address.exec} in this sandbox", field="exec")
        return ok()

    def _running(self, call: Call) -> Running:
        sandbox = self._node.sandboxes.get(call.address.sandbox, call.address.project)
        sandbox.inside()
        running = sandbox.running.get(call.address.exec)
        if running is None:
            known = call.address.exec in sandbox.logs
            told = "has ended" if known else "is not in this sandbox"
            raise NoSuchExec(f"exec {call.address.exec} {told}", field="exec")
        return running


def room_to_run(spools: Path, more: int) -> None:
    """Raises DiskFull, before anything is done, when tmpfs has no room for a command's output and input."""
    tmpfs = os.statvfs(spools)
    if tmpfs.f_bavail * tmpfs.f_frsize < ROOM + more or (tmpfs.f_files and tmpfs.f_favail < ROOM_FILES):
        raise DiskFull(f"the node's tmpfs is full: free some of {spools.parent.parent}")


def quota_of(asked: int | None, allowed: int) -> int:
    """Bytes of output to capture. Raises LimitError when more is asked for than the sandbox has."""
    if asked is not None and asked > allowed:
        raise LimitError(f"the sandbox allows {allowed} bytes of output per command", field="log_bytes")
    return asked or allowed


def stdin_of(request: StartExec) -> bytes | None:
    """The command's standard input; None without one."""
    if request.stdin is None:
        return b"" if request.stdin_open else None
    return decoded(request.stdin, "stdin")


def decoded(data: str, field: str) -> bytes:
    """Bytes of base64. Raises SpecError."""
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise SpecError(f"{field} is not base64", field=field) from None


def again(exec_: str, log: int) -> bytes:
    """The answer to a repeated start whose first answer is no longer at hand: the log has everything."""
    meta = b'{"exec":"%s","again":true}' % exec_.encode()
    return HEADER.pack(FRAME_VERSION, Kind.STARTED, 0, 0, 0, log) + pack_parts(meta, b"", b"")
