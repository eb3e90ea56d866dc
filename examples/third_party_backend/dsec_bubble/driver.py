"""The contract of a backend, kept with bubblewrap: `dsec.bus.driver.Driver` tells what each method promises.

Everything of a sandbox is found by its id alone (its control group, its directory), so that `destroy` works
on what a killed process left half made.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from dsec.bus.chronus.build import binary
from dsec.bus.driver import Channel, Death, Handle, Info, Order, Rootfs
from dsec.bus.errors import AgentCrippled, Failure, InfraError, MissingTool, NoSuchSandbox, Unsupported
from dsec.bus.spec import MIB, Limits

from . import filter as seccomp
from . import launch
from .groups import Group, hierarchy

INFO = Info(
    name="bubble",
    version=1,
    limits=frozenset({"nofile", "log_bytes"}),
    defaults=Limits(nofile=4096, log_bytes=64 * MIB),
)
PROGRAMS = {"bwrap": "bubblewrap", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}
DOOR = "door"


class BubbleDriver:
    """`Driver` and `CanPause`; `home` is for the driver alone."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._watched: dict[str, int] = {}
        self._dead: dict[str, Death] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._queues: set[asyncio.Queue[Death]] = set()

    def info(self) -> Info:
        return INFO

    async def check(self) -> None:
        if os.geteuid() != 0:
            raise MissingTool("the bubble backend must run as root")
        for program, package in PROGRAMS.items():
            if shutil.which(program) is None:
                raise MissingTool(f"{program} is not installed: apt-get install {package}")
        seccomp.program(os.uname().machine)
        hierarchy()
        binary()

    async def create(self, order: Order, rootfs: Rootfs) -> Handle:
        for name in order.limits.asked() - INFO.limits:
            raise Unsupported(f"bubblewrap does not limit {name}", field=f"limits.{name}")
        sandbox = order.sandbox
        await self.destroy(sandbox)
        try:
            pid = await self._start(order, rootfs)
            started = _started(pid)
            self._watch(sandbox, pid)
        except BaseException as error:
            await asyncio.shield(self.destroy(sandbox))
            if isinstance(error, OSError):
                raise InfraError.during(f"starting {sandbox}", error) from error
            raise
        return Handle(sandbox, INFO.name, INFO.version, json.dumps([pid, started]).encode())

    async def _start(self, order: Order, rootfs: Rootfs) -> int:
        (self._home / order.sandbox).mkdir(mode=0o700, parents=True)
        group = Group(self._home, order.sandbox).make()
        nofile = order.limits.nofile or INFO.defaults.nofile or 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            with self._address(order.sandbox) as address:
                door.bind(address)
            door.listen(8)
            pid, process = await launch.start(launch.Plan(rootfs, door, group, nofile))
        self._processes[order.sandbox] = process
        return pid

    async def channel(self, sandbox: str) -> Channel:
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            with self._address(sandbox) as address:
                door.connect(address)
        except FileNotFoundError:
            door.close()
            raise NoSuchSandbox(f"there is no sandbox {sandbox} on this node") from None
        except (ConnectionRefusedError, BlockingIOError) as error:
            door.close()
            raise AgentCrippled.during(f"the agent of {sandbox} does not accept", error) from error
        return Channel(door, descriptors=True, cgroup=Group(self._home, sandbox).path)

    async def destroy(self, sandbox: str) -> None:
        self._forget(sandbox)
        self._dead.pop(sandbox, None)
        try:
            await Group(self._home, sandbox).remove()
        except OSError as error:
            raise InfraError.during(f"removing {sandbox}", error) from error
        if process := self._processes.pop(sandbox, None):
            process.wait()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._home / sandbox)

    async def inspect(self, sandbox: str) -> Death | None:
        if sandbox in self._dead:
            return self._dead[sandbox]
        if sandbox not in self._watched:
            raise NoSuchSandbox(f"there is no sandbox {sandbox} on this node")
        return None

    def watch(self) -> AsyncIterator[Death]:
        queue: asyncio.Queue[Death] = asyncio.Queue()
        self._queues.add(queue)
        return self._deaths(queue)

    async def _deaths(self, queue: asyncio.Queue[Death]) -> AsyncIterator[Death]:
        try:
            while True:
                yield await queue.get()
        finally:
            self._queues.discard(queue)

    async def recover(self, handle: Handle) -> None:
        if handle.sandbox in self._watched:
            return
        try:
            pid, started = json.loads(handle.state)
            if _started(pid) != started:
                raise ProcessLookupError(pid)
            self._watch(handle.sandbox, pid)
        except (ValueError, OSError):
            raise NoSuchSandbox(f"{handle.sandbox} died while nobody looked") from None

    async def close(self) -> None:
        for sandbox in list(self._watched):
            self._forget(sandbox)
        Group(self._home, "any").remove_parents()

    # --- CanPause

    async def pause(self, sandbox: str) -> None:
        """Repeatable. Raises NoSuchSandbox, InfraError."""
        await self._freeze(sandbox, frozen=True)

    async def resume(self, sandbox: str) -> None:
        """Repeatable. Raises NoSuchSandbox, InfraError."""
        await self._freeze(sandbox, frozen=False)

    async def _freeze(self, sandbox: str, *, frozen: bool) -> None:
        try:
            await Group(self._home, sandbox).freeze(frozen=frozen)
        except FileNotFoundError:
            raise NoSuchSandbox(f"there is no sandbox {sandbox} on this node") from None

    # --- deaths

    def _watch(self, sandbox: str, pid: int) -> None:
        self._watched[sandbox] = pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(pidfd, self._died, sandbox)

    def _forget(self, sandbox: str) -> None:
        pidfd = self._watched.pop(sandbox, -1)
        if pidfd >= 0:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def _died(self, sandbox: str) -> None:
        self._forget(sandbox)
        self._dead[sandbox] = death = Death(sandbox, Failure.LIMIT, "its agent was ended")
        for queue in self._queues:
            queue.put_nowait(death)

    @contextlib.contextmanager
    def _address(self, sandbox: str) -> Iterator[str]:
        """Socket addresses hold 107 bytes: it goes through a descriptor of the directory."""
        directory = os.open(self._home / sandbox, os.O_PATH | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{directory}/{DOOR}"
        finally:
            os.close(directory)


def _started(pid: int) -> int:
    """Start time in clock ticks after boot (proc(5)): with it a pid is not mistaken for another's."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
