"""A command inside a sandbox: what to run, its pipes, and the handle of a running one."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, Self

from dsec.bus.chronus.cgroup import ExecCgroup
from dsec.bus.chronus.faults import explain
from dsec.bus.chronus.protocol import Exit, Flag, Malformed, Op, Reply
from dsec.bus.chronus.transport import close_all
from dsec.bus.errors import InfraError, NoSuchExec, SpecError
from dsec.bus.spec import Limits

__all__ = ["Command", "Exec", "Exit", "HostEnds", "Pipes", "SessionEnds"]


@dataclass(frozen=True, slots=True)
class Command:
    """`user`: name or uid, `:group` or `:gid` may follow. HOME and PATH are set unless `env` has them.

    Without `stdin` the command reads an immediate end of file (/dev/null). At most one of `stdin`,
    `session` (a shell that reads its commands from a channel) and `terminal` (rows, columns).
    """

    argv: tuple[str, ...]
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    stdin: bool = False
    session: bool = False
    terminal: tuple[int, int] | None = None
    limits: Limits | None = None


class SessionEnds(NamedTuple):
    """Of a session: where commands are written and statuses read, and the file that is their stdin."""

    commands: int
    statuses: int
    input: int


class HostEnds(NamedTuple):
    """Non-blocking descriptors on the host's side; `stdin` is a terminal's master, too."""

    stdout: int
    stderr: int
    stdin: int | None
    session: SessionEnds | None = None

    def all(self) -> list[int]:
        """Every descriptor that is there."""
        stdin = () if self.stdin is None else (self.stdin,)
        return [self.stdout, self.stderr, *stdin, *(self.session or ())]


class Pipes(NamedTuple):
    """The pipes of a command about to start: `passed` is what START takes, of which `child`'s go then."""

    host: HostEnds
    passed: tuple[int, ...]
    child: tuple[int, ...]

    @classmethod
    def make(cls, joined: Sequence[int], command: Command) -> Self:
        """Pipes of the system's default size; the child's ends block, the host's do not.

        `joined`, the opened cgroup.procs, are closed with the child's ends. Raises InfraError.
        """
        ends: list[tuple[int, int]] = []
        try:
            ends += [_output(), _output()]
            if command.session:
                ends += [_commands(), _status(), _memory()]
            elif command.stdin:
                ends.append(os.pipe2(os.O_CLOEXEC))
        except OSError as error:
            close_all([*joined, *(end for pair in ends for end in pair)])
            raise InfraError.during("making the pipes of a command", error) from error
        (out, host_out), (err, host_err), *more = ends
        optional = [end for pair in more for end in pair]
        passed = (joined[0], out, err, host_out, host_err, *optional, *joined[1:])
        host = _host_ends([pair[1] for pair in ends], session=command.session)
        return cls(host, passed, (*joined, *(pair[0] for pair in ends)))

    @staticmethod
    def attached(descriptors: tuple[int, ...], flags: int) -> HostEnds:
        """What ATTACH brought, made non-blocking. Raises Malformed for anything else than it should be."""
        session = bool(flags & Flag.SESSION)
        expected = [_is_output, _is_output]
        if session:
            expected += [_is_input, _is_output, _is_memory]
        if flags & Flag.STDIN:
            expected.append(_is_master if flags & Flag.TERMINAL else _is_input)
        if len(descriptors) != len(expected):
            raise Malformed(f"{len(descriptors)} descriptors of an exec")
        for descriptor, right in zip(descriptors, expected, strict=True):
            if not right(descriptor):
                raise Malformed("a descriptor that is not the end of a pipe it should be")
        return _host_ends(list(descriptors), session=session)


_TIOCGPTN: Final = 0x80045430


def _output() -> tuple[int, int]:
    """A pipe that the child writes: its end, then the host's."""
    read, write = os.pipe2(os.O_CLOEXEC)
    return write, read


def _status() -> tuple[int, int]:
    """Like `_output`; the inside may open it again by its name in /proc, for writing."""
    write, read = _output()
    os.fchmod(write, 0o222)
    return write, read


def _commands() -> tuple[int, int]:
    """A pipe that the child opens by its name in /proc, and reads: its end, then the host's."""
    read, write = os.pipe2(os.O_CLOEXEC)
    os.fchmod(read, 0o444)
    return read, write


def _memory() -> tuple[int, int]:
    """A file in memory that the child may open for reading: its descriptor, then the host's."""
    written = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.fchmod(written, 0o444)
    return os.open(f"/proc/self/fd/{written}", os.O_RDONLY | os.O_CLOEXEC), written


def _host_ends(descriptors: list[int], *, session: bool) -> HostEnds:
    for descriptor in descriptors:
        os.set_blocking(descriptor, False)
    out, err, *more = descriptors
    if session:
        return HostEnds(out, err, None, SessionEnds(*more))
    return HostEnds(out, err, more[0] if more else None)


def _access(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE


def _is_output(descriptor: int) -> bool:
    return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and _access(descriptor) == os.O_RDONLY


def _is_input(descriptor: int) -> bool:
    return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and _access(descriptor) == os.O_WRONLY


def _is_memory(descriptor: int) -> bool:
    """Whether it is a file in memory, the only kind that takes this call: written bytes stay there."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return _access(descriptor) == os.O_RDWR


def _is_master(descriptor: int) -> bool:
    try:
        fcntl.ioctl(descriptor, _TIOCGPTN, bytes(4))
    except OSError:
        return False
    return _access(descriptor) == os.O_RDWR


class Agent(Protocol):
    """What an Exec needs of its Guest."""

    async def tell(self, op: Op, exec_id: str, before: bytes = b"") -> Reply: ...

    def post(self, op: Op, exec_id: str) -> None: ...

    def forget(self, exec_: Exec) -> None: ...


class Exec:
    """A started command. Owns `stdout`, `stderr`, `stdin` and `session` (non-blocking) until `release` or
    `detach`.

    `exited` has the end of the leader, or AgentCrippled when the channel was lost before, or NoSuchExec when
    it was released before.
    """

    __slots__ = ("_agent", "cgroup", "exited", "id", "session", "stderr", "stdin", "stdout")

    def __init__(self, agent: Agent, exec_id: str, ends: HostEnds, cgroup: ExecCgroup) -> None:
        self.id = exec_id
        self.stdout, self.stderr = ends.stdout, ends.stderr
        self.stdin = ends.stdin
        self.session = ends.session
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._agent = agent
        self.cgroup = cgroup

    async def signal(self, signum: int) -> None:
        """To the leader only; silent when it has ended. Raises NoSuchExec, SpecError, AgentCrippled."""
        self._judge(await self._agent.tell(Op.SIGNAL, self.id, struct.pack("<I", signum)))

    async def close_stdin(self) -> None:
        """End of file for the command: both copies of the write end go. Repeatable."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None
        self._judge(await self._agent.tell(Op.CLOSE_STDIN, self.id))

    async def kill_tree(self) -> None:
        """SIGKILL to every process of the command, whatever became of its parents; all gone on return."""
        await self.cgroup.kill()

    def oom_killed(self) -> bool:
        """Whether a process of it was killed for the command's own limit of memory."""
        return self.cgroup.oom_kills() > 0

    async def release(self) -> None:
        """Kill what is left, remove the cgroup, drop the descriptors on both sides; repeatable.

        With a lost channel only this side is cleaned: release again after an `attach`.
        """
        self._agent.forget(self)
        self._agent.post(Op.RELEASE, self.id)
        await self.cgroup.remove(empty=self.exited.done())

    def detach(self) -> None:
        """Close the descriptors here and leave the command running, to be attached again; repeatable."""
        ends = HostEnds(self.stdout, self.stderr, self.stdin, self.session)
        open_ones = [fd for fd in ends.all() if fd >= 0]
        self.stdout = self.stderr = -1
        self.stdin = self.session = None
        close_all(open_ones)

    def _judge(self, reply: Reply) -> None:
        if reply.error == errno.EINVAL:
            raise SpecError(f"exec {self.id}: {explain(reply.error)}", field="signum")
        if reply.error:
            raise NoSuchExec(f"exec {self.id}: {explain(reply.error)}", field="exec")
