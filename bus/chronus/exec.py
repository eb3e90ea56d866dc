"""A command inside a sandbox: what to run, its pipes, and the handle of a running one."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

from dsec.bus.chronus.cgroup import ExecCgroup
from dsec.bus.chronus.faults import explain
from dsec.bus.chronus.protocol import Exit, Malformed, Op, Reply
from dsec.bus.chronus.transport import close_all
from dsec.bus.errors import InfraError, NoSuchExec, SpecError

__all__ = ["Command", "Exec", "Exit", "HostEnds", "Pipes"]


@dataclass(frozen=True, slots=True)
class Command:
    """`user`: name or uid, `:group` or `:gid` may follow. HOME and PATH are set unless `env` has them.

    Without `stdin` the command reads an immediate end of file (/dev/null).
    """

    argv: tuple[str, ...]
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    stdin: bool = False


class HostEnds(NamedTuple):
    """Non-blocking descriptors on the host's side."""

    stdout: int
    stderr: int
    stdin: int | None


class Pipes(NamedTuple):
    """The pipes of a command about to start: `passed` is what START takes, of which `child`'s go then."""

    host: HostEnds
    passed: tuple[int, ...]
    child: tuple[int, ...]

    @classmethod
    def make(cls, procs: int, *, stdin: bool) -> Self:
        """Pipes of the system's default size; the child's ends block, the host's do not.

        `procs`, the opened cgroup.procs, is closed with the child's ends. Raises InfraError.
        """
        ends: list[int] = [procs]
        try:
            for _ in range(3 if stdin else 2):
                ends += os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            close_all(ends)
            raise InfraError.during("making the pipes of a command", error) from error
        _, out_read, out_write, err_read, err_write, *inputs = ends
        host = HostEnds(out_read, err_read, inputs[1] if inputs else None)
        for end in host:
            if end is not None:
                os.set_blocking(end, False)
        passed = (procs, out_write, err_write, out_read, err_read, *inputs)
        return cls(host, passed, (procs, out_write, err_write, *inputs[:1]))

    @staticmethod
    def attached(descriptors: tuple[int, ...], *, stdin: bool) -> HostEnds:
        """What ATTACH brought, made non-blocking. Raises Malformed for anything that is not a pipe's end."""
        modes = [os.O_RDONLY, os.O_RDONLY, os.O_WRONLY][: 3 if stdin else 2]
        if len(descriptors) != len(modes):
            raise Malformed(f"{len(descriptors)} descriptors of an exec")
        for descriptor, mode in zip(descriptors, modes, strict=True):
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if not stat.S_ISFIFO(os.fstat(descriptor).st_mode) or flags & os.O_ACCMODE != mode:
                raise Malformed("a descriptor that is not the end of a pipe it should be")
            os.set_blocking(descriptor, False)
        return HostEnds(descriptors[0], descriptors[1], descriptors[2] if stdin else None)


class Agent(Protocol):
    """What an Exec needs of its Guest."""

    async def tell(self, op: Op, exec_id: str, before: bytes = b"") -> Reply: ...

    def post(self, op: Op, exec_id: str) -> None: ...

    def forget(self, exec_: Exec) -> None: ...


class Exec:
    """A started command. Owns `stdout`, `stderr` and `stdin` (non-blocking) until `release` or `detach`.

    `exited` has the end of the leader, or AgentCrippled when the channel was lost before, or NoSuchExec when
    it was released before.
    """

    __slots__ = ("_agent", "_cgroup", "exited", "id", "stderr", "stdin", "stdout")

    def __init__(self, agent: Agent, exec_id: str, ends: HostEnds, cgroup: ExecCgroup) -> None:
        self.id = exec_id
        self.stdout, self.stderr = ends.stdout, ends.stderr
        self.stdin = ends.stdin
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._agent = agent
        self._cgroup = cgroup

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
        await self._cgroup.kill()

    async def release(self) -> None:
        """Kill what is left, remove the cgroup, drop the descriptors on both sides; repeatable.

        With a lost channel only this side is cleaned: release again after an `attach`.
        """
        self._agent.forget(self)
        self._agent.post(Op.RELEASE, self.id)
        await self._cgroup.remove(empty=self.exited.done())

    def detach(self) -> None:
        """Close the descriptors here and leave the command running, to be attached again; repeatable."""
        open_ones = [fd for fd in (self.stdout, self.stderr, self.stdin) if fd is not None and fd >= 0]
        self.stdout = self.stderr = -1
        self.stdin = None
        close_all(open_ones)

    def _judge(self, reply: Reply) -> None:
        if reply.error == errno.EINVAL:
            raise SpecError(f"exec {self.id}: {explain(reply.error)}", field="signum")
        if reply.error:
            raise NoSuchExec(f"exec {self.id}: {explain(reply.error)}", field="exec")
