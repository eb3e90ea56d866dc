"""The one client of chronus: commands and files inside a sandbox, from the node's event loop.

A channel may be lost at any time (the node restarts, a newer connection wins): then every call and every
`Exec.exited` of this Guest raises AgentCrippled, while commands run on; a new Guest finds them by `execs` and
`attach`. Whether the sandbox itself is dead is for its driver to tell.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from dsec.bus.chronus import protocol
from dsec.bus.chronus.cgroup import ExecCgroup
from dsec.bus.chronus.exec import Command, Exec, Exit, Pipes
from dsec.bus.chronus.faults import explain, start_fault
from dsec.bus.chronus.files import Files
from dsec.bus.chronus.protocol import EXEC_ID_MAX, REQUEST_MAX, Flag, Malformed, Op, Reply, text
from dsec.bus.chronus.transport import Transport, close_all
from dsec.bus.driver import Channel
from dsec.bus.errors import (
    AgentCrippled,
    Conflict,
    DsecError,
    NoSuchExec,
    SpecError,
    TooLarge,
    Unsupported,
)

__all__ = ["Command", "Exec", "Exit", "Guest"]

PATIENCE: Final = 60.0  # s without an answer to a request until the agent counts as crippled
CHILD_PATIENCE: Final = {Op.START: 10.0, Op.REMOVE: 600.0}
"""What a child of the agent answers, which the inside can stop: in s until that request alone has failed."""
LOOKS: Final = 8  # at what waits for an answer, in the shortest patience
EXECS_MAX: Final = 100_000
_ID_MASK: Final = 0xFFFF_FFFF
_COUNTS: Final = struct.Struct("<II")
_NUMBER: Final = struct.Struct("<I")


class _Call(NamedTuple):
    op: Op
    since: float
    reply: asyncio.Future[Reply]


class Guest(Files):
    """A connection to the agent of one sandbox; any number of calls at once. Made by `connect`."""

    def __init__(self, channel: Channel) -> None:
        if not channel.descriptors or channel.cgroup is None:
            raise Unsupported("this channel passes no descriptors: the agent of a container is needed")
        self._loop = asyncio.get_running_loop()
        self._cgroup: Path = channel.cgroup
        self._calls: dict[int, _Call] = {}
        self._execs: dict[str, Exec] = {}
        self._last_id = 0
        self._started = 0  # and attached: each has one end to tell
        self._strays = 0
        self._watchdog: asyncio.TimerHandle | None = None
        self._excused = False
        self._closed = asyncio.Event()
        self._reason = ""
        self._transport = Transport(channel.socket, self._on_packet, self._on_close)

    @classmethod
    async def connect(cls, channel: Channel, *, timeout: float = 5.0) -> Self:
        """A Guest that has answered; it owns the channel's socket. Raises AgentCrippled after `timeout` s."""
        guest = cls(channel)
        try:
            async with asyncio.timeout(timeout):
                await guest.ping()
        except TimeoutError:
            guest.close()
            raise AgentCrippled(f"the agent inside does not answer for {timeout:g} s") from None
        except BaseException:
            guest.close()
            raise
        return guest

    async def ping(self) -> None:
        """Returns when the inside has answered. Raises AgentCrippled."""
        self._succeeded(await self._submit(Op.PING, b""))

    async def start(self, exec_id: str, command: Command) -> Exec:
        """Start `command` in a cgroup of its own; returns when execve has succeeded.

        Raises NoSuchProgram (also: no such user or cwd), LimitError, Conflict (the id is in use), TooLarge,
        SpecError, AgentCrippled. Nothing is left of a start that failed or was cancelled.
        """
        body = _start_body(exec_id, command)
        cgroup = ExecCgroup(self._cgroup / exec_id)
        if exec_id in self._execs:
            raise Conflict(f"exec {exec_id} is running already", field="exec")
        pipes = await _prepare(cgroup, command)
        self._execs[exec_id] = new = Exec(self, exec_id, pipes.host, cgroup)
        self._started += 1
        try:
            reply = await self._submit(Op.START, body, _kind(command), pipes.passed, pipes.child)
            if reply.error:
                raise start_fault(reply.error, reply.flags, command.argv[0], command.cwd, command.user)
            if command.terminal:
                await self._take_master(new)
        except Conflict:
            self.forget(new)
            raise
        except BaseException:
            await new.release()
            raise
        return new

    async def execs(self) -> list[str]:
        """Ids of all execs not yet released, of whichever connection."""
        found: list[str] = []
        more = True
        while more:
            reply = self._succeeded(await self._submit(Op.EXECS, _NUMBER.pack(len(found))))
            names = self._strings(reply)
            found += names
            more = bool(reply.flags & Flag.MORE)
            if more and (not names or len(found) > EXECS_MAX):
                raise self._malformed("execs without an end")
        return found

    async def attach(self, exec_id: str) -> Exec:
        """An exec of a former connection: its descriptors with all unread output, and its end.

        Raises NoSuchExec, AgentCrippled.
        """
        if exec_id in self._execs:
            return self._execs[exec_id]
        reply = await _kept(self._submit(Op.ATTACH, text(exec_id)))
        if reply.error:
            raise NoSuchExec(f"exec {exec_id}: {explain(reply.error)}", field="exec")
        if exec_id in self._execs:  # attached twice at once
            close_all(reply.descriptors)
            return self._execs[exec_id]
        return self._adopt(exec_id, reply)

    def _adopt(self, exec_id: str, reply: Reply) -> Exec:
        try:
            pipes = Pipes.attached(reply.descriptors, reply.flags)
            ended = protocol.parse_exit(reply.body)[0] if reply.flags & Flag.EXITED else None
        except Malformed as error:
            close_all(reply.descriptors)
            raise self._malformed(str(error)) from error
        found = Exec(self, exec_id, pipes, ExecCgroup(self._cgroup / exec_id, found=True))
        if ended:
            found.exited.set_result(ended)
        self._execs[exec_id] = found
        self._started += 1
        return found

    async def _take_master(self, terminal: Exec) -> None:
        """What a start could not pass: the agent opened it inside."""
        reply = await _kept(self._submit(Op.ATTACH, text(terminal.id)))
        try:
            ends = Pipes.attached(reply.descriptors, reply.flags)
        except Malformed as error:
            close_all(reply.descriptors)
            raise self._malformed(str(error)) from error
        close_all([ends.stdout, ends.stderr, *(ends.session or ())])
        terminal.stdin = ends.stdin
        if reply.flags & Flag.EXITED and not terminal.exited.done():
            terminal.exited.set_result(protocol.parse_exit(reply.body)[0])

    async def wait_closed(self) -> None:
        """Returns when the channel is closed, by whichever side."""
        await self._closed.wait()

    def close(self) -> None:
        """Repeatable. Commands run on; descriptors stay with their Exec."""
        self._transport.close()

    async def quiet(self, within: float) -> None:
        """Return when no answer is waited for, or after `within` seconds."""
        until = self._loop.time() + within
        while self._calls and self._loop.time() < until:  # noqa: ASYNC110 - answers come in milliseconds
            await asyncio.sleep(0.002)

    def excuse(self) -> None:
        """The inside is about to be frozen: its silence does not count until `expect`. Repeatable."""
        self._excused = True

    def expect(self) -> None:
        """The inside runs: it has its full patience for what was asked before. Repeatable."""
        self._excused = False
        now = self._loop.time()
        self._calls = {number: call._replace(since=now) for number, call in self._calls.items()}

    # What an Exec asks of its Guest.

    async def tell(self, op: Op, exec_id: str, before: bytes = b"") -> Reply:
        """The reply to a request about one exec; its error is the caller's to judge."""
        return await self._submit(op, before + text(exec_id))

    def post(self, op: Op, exec_id: str) -> None:
        """A request without a reply; requests after it find it done."""
        self._transport.send(protocol.pack(op, 0, text(exec_id)))

    def forget(self, exec_: Exec) -> None:
        """Close the descriptors of `exec_` here; its end is not told any more."""
        if self._execs.get(exec_.id) is exec_:
            del self._execs[exec_.id]
            _fail(exec_.exited, NoSuchExec(f"exec {exec_.id} was released", field="exec"))
        exec_.detach()

    # Requests out, replies in.

    def _submit(
        self,
        op: Op,
        body: bytes,
        flags: int = 0,
        descriptors: tuple[int, ...] = (),
        close_after: tuple[int, ...] = (),
    ) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self._transport.closed:
            close_all(close_after)
            future.set_exception(self._crippled())
            return future
        self._last_id = request = (self._last_id % _ID_MASK) + 1
        self._calls[request] = _Call(op, self._loop.time(), future)
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(_interval(), self._watch)
        self._transport.send(protocol.pack(op, request, body, flags), descriptors, close_after)
        return future

    def _on_packet(self, datagram: bytes, descriptors: tuple[int, ...]) -> None:
        try:
            self._dispatch(protocol.parse(datagram, descriptors))
        except Malformed as error:
            close_all(descriptors)
            self._malformed(str(error))

    def _dispatch(self, reply: Reply) -> None:
        if reply.op is Op.EXITED:
            self._on_exit(reply)
            return
        call = self._calls.pop(reply.id, None)
        if call is None or call.op is not reply.op:
            if call is not None:
                self._calls[reply.id] = call  # answered by the closing
            raise Malformed(f"an answer to {reply.op.name} that nobody asked for")
        if call.reply.done():  # the caller was cancelled
            close_all(reply.descriptors)
        else:
            call.reply.set_result(reply)

    def _on_exit(self, reply: Reply) -> None:
        ended, exec_id = protocol.parse_exit(reply.body)
        found = self._execs.get(exec_id)
        if found is not None and not found.exited.done():
            found.exited.set_result(ended)
            return
        self._strays += 1
        if self._strays > self._started:
            raise Malformed("more ends than there were commands")

    def _watch(self) -> None:
        """Give up what was not answered in time, and the whole agent unless it was kept by its child."""
        self._watchdog = None
        now = self._loop.time()
        late = [] if self._excused else [one for one in self._calls.items() if _is_late(one[1], now)]
        for number, call in late:
            if call.reply.done():  # its caller gave up before
                del self._calls[number]
            elif call.op in CHILD_PATIENCE:
                _fail(call.reply, AgentCrippled(f"{call.op.name} does not end: is its process stopped?"))
                self._calls[number] = call._replace(since=now)
            else:
                self._transport.close(f"no answer to {call.op.name} for {PATIENCE:.0f} s")
                return
        if self._calls:
            self._watchdog = self._loop.call_later(_interval(), self._watch)

    def _on_close(self, reason: str) -> None:
        self._reason = reason
        self._closed.set()
        if self._watchdog is not None:
            self._watchdog.cancel()
        waiting: list[asyncio.Future[Any]] = [call.reply for call in self._calls.values()]
        waiting += [found.exited for found in self._execs.values()]
        self._calls.clear()
        for future in waiting:
            _fail(future, self._crippled())

    def _crippled(self) -> AgentCrippled:
        return AgentCrippled(f"the channel to the agent inside is closed: {self._reason}")

    def _malformed(self, what: str) -> AgentCrippled:
        self._transport.close(f"the inside sent {what}")
        return self._crippled()

    def _succeeded(self, reply: Reply) -> Reply:
        if reply.error:
            raise self._malformed(f"{explain(reply.error)} to {reply.op.name}")
        return reply

    def _strings(self, reply: Reply) -> list[str]:
        try:
            return protocol.strings(reply.body)
        except Malformed as error:
            raise self._malformed(str(error)) from error


def _is_late(call: _Call, now: float) -> bool:
    return now - call.since >= CHILD_PATIENCE.get(call.op, PATIENCE)


def _interval() -> float:
    return min(PATIENCE, *CHILD_PATIENCE.values()) / LOOKS


def _kind(command: Command) -> Flag:
    """What is asked for: nothing, or one of these."""
    if command.terminal:
        return Flag.TERMINAL
    if command.session:
        return Flag.SESSION
    return Flag.STDIN if command.stdin else Flag.NONE


async def _prepare(cgroup: ExecCgroup, command: Command) -> Pipes:
    """A cgroup and pipes; neither when it raises InfraError."""
    try:
        cgroup.make(command.limits)
        return Pipes.make(cgroup.open_procs(), command)
    except DsecError:
        await cgroup.remove(empty=True)
        raise


async def _kept(future: asyncio.Future[Reply]) -> Reply:
    """The reply; its descriptors are closed when the caller is cancelled just as it comes."""
    try:
        return await future
    except asyncio.CancelledError:
        if future.done() and not future.cancelled() and future.exception() is None:
            close_all(future.result().descriptors)
        raise


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    """End what is still waited for; nobody has to look at it."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def _start_body(exec_id: str, command: Command) -> bytes:
    if not command.argv or not 0 < len(exec_id) <= EXEC_ID_MAX or "/" in exec_id:
        raise SpecError("a command needs an id and at least one argument", field="argv")
    environment = [f"{name}={value}" for name, value in command.env.items()]
    counts = _COUNTS.pack(len(command.argv), len(environment))
    if command.terminal:
        counts += _COUNTS.pack(*command.terminal)
    try:
        parts = map(text, (exec_id, command.user, command.cwd, *command.argv, *environment))
        body = counts + b"".join(parts)
    except ValueError as error:
        raise SpecError(str(error), field="argv") from None
    if len(body) + protocol.HEAD.size > REQUEST_MAX:
        raise TooLarge(
            f"arguments and environment take {len(body)} bytes, {REQUEST_MAX} are possible: use a file",
            field="argv",
        )
    return body
