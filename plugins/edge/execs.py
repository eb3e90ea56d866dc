"""Requests about commands: start, stdin, signal, credit."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from typing import Final

from dsec.bus.chronus.guest import Exec
from dsec.bus.errors import DeadlineExceeded, DiskFull, GoneError, NoSuchExec, SpecError
from dsec.bus.exec_list import ListExecs
from dsec.bus.frames import FRAME_VERSION, HEADER, Kind, pack_parts
from dsec.bus.handlers import Call, ok
from dsec.bus.ids import exec_of
from dsec.bus.messages import GrantCredit, ResizeExec, SignalExec, StartExec, WriteStdin
from dsec.bus.nats.appender import Stored
from dsec.plugins.edge.descriptors import room_for_command
from dsec.plugins.edge.leader import SIGKILL, Started
from dsec.plugins.edge.listing import page
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.running import Running
from dsec.plugins.edge.sandboxes import Sandbox
from dsec.plugins.edge.session import Shell, Turn
from dsec.plugins.edge.sessions import Sessions
from dsec.plugins.edge.spool import remove
from dsec.plugins.edge.starting import command_of, entry_of, journalled, log_of, room_to_run
from dsec.plugins.edge.terminal import OnTerminal
from dsec.plugins.edge.trajectory import Entry

STDIN_WAIT: Final = 30.0
"""Seconds that a write waits for a command that does not read, at most."""


class Execs:
    """Handlers of `exec.*` for one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.sessions = Sessions(node, self.run)

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
        data = stdin_of(request)
        sandbox.inside()
        room_for_command(len(sandbox.running) + len(sandbox.starting) - 1)
        room_to_run(sandbox.spools, len(data or b""))
        if request.session is not None:
            starting = self.sessions.run(sandbox, exec_, request, data)
        elif request.shell is not None:
            starting = self.sessions.open(sandbox, exec_, request)
        else:
            starting = self._command(sandbox, exec_, request, data)
        answer, stored = await starting
        if request.durable:
            await asyncio.shield(stored)
        return answer

    async def _command(
        self, sandbox: Sandbox, exec_: str, request: StartExec, data: bytes | None
    ) -> tuple[bytes, Stored]:
        """A command with a leader of its own."""
        entry = entry_of(sandbox, exec_, request)
        with journalled(sandbox, entry):
            wanted = command_of(sandbox, request, request.argv, stdin=data is not None)
            command = await sandbox.inside().start(exec_, wanted)
            return await self._begin(sandbox, entry, self.dressed(entry, command), data)

    async def _begin(
        self, sandbox: Sandbox, entry: Entry, command: Started, data: bytes | None
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

    def dressed(self, entry: Entry, command: Exec) -> Started:
        """With its terminal, if it has one."""
        return OnTerminal(command, self._node.tasks) if entry.terminal else command

    def run(self, sandbox: Sandbox, entry: Entry, command: Started) -> Running:
        """Have `command` among the sandbox's running ones until it is released."""
        running = Running(
            entry,
            command,
            log_of(self._node, sandbox, entry),
            sandbox.spools / entry.exec,
            sandbox.desk,
            lambda: sandbox.running.pop(entry.exec, None),
            command.pipes if isinstance(command, Turn) else None,
        )
        sandbox.running[entry.exec] = running
        return running

    async def list(self, call: Call, request: ListExecs) -> bytes:
        """The sandbox's commands, those that have ended too."""
        sandbox = self._node.sandboxes.get(call.address.sandbox, call.address.project)
        return ok(page(await asyncio.to_thread(sandbox.trajectory.listed), request))

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

    async def resize(self, call: Call, request: ResizeExec) -> bytes:
        """The terminal of a command has another size."""
        running = self._running(call)
        if not running.entry.terminal or running.stdin is None:
            raise SpecError("the command was started without a terminal", field="terminal")
        running.stdin.resize(request.rows, request.columns)
        return ok()

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

    def _running(self, call: Call) -> Running | Shell:
        sandbox = self._node.sandboxes.get(call.address.sandbox, call.address.project)
        sandbox.inside()
        running = sandbox.running.get(call.address.exec)
        if running is None or (isinstance(running, Running) and running.over):
            known = running is not None or call.address.exec in sandbox.logs
            told = "has ended" if known else "is not in this sandbox"
            raise NoSuchExec(f"exec {call.address.exec} {told}", field="exec")
        return running


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
