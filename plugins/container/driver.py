"""The container backend: `Driver` with all optional abilities on an OCI engine, without a daemon.

A sandbox is its cgroups, its PID 1 (chronus) and a directory `<home>/<sandbox>` with the door. All three are
found by the sandbox's id alone, so `destroy` works on what a killed node left half made. The kernel's mount
and network namespaces end with PID 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import orjson

from dsec.bus.chronus.build import binary
from dsec.bus.driver import Channel, Death, Handle, Info, Order, Rootfs
from dsec.bus.errors import (
    AgentCrippled,
    DiskFull,
    Failure,
    InfraError,
    LimitError,
    MissingTool,
    NoSuchSandbox,
)
from dsec.bus.files import FULL
from dsec.bus.userns import UserNamespaces
from dsec.plugins.container import checks, door, oci, orphans, ports, seccomp
from dsec.plugins.container.cgroups import ENGINE, Cgroups, until
from dsec.plugins.container.checks import INFO
from dsec.plugins.container.cpus import Cpus, listed, parse
from dsec.plugins.container.engine import Engine, Job, find, sealed
from dsec.plugins.container.honest import Honest
from dsec.plugins.container.process import Watched
from dsec.plugins.container.visits import Visitor

KERNEL: Final = (5, 19)
"""The first kernel with overlayfs on idmapped layers; it has cgroup.kill, cgroup.freeze and pidfds too."""
START_WITHIN = 30.0
"""Seconds for a start, which takes milliseconds: engines read files of the image, and one may be a pipe."""
RECLAIM_WITHIN: Final = 2.0
"""Seconds for which a paused sandbox's memory is taken; who wants to resume it waits as long."""


class ContainerDriver:
    """Containers of one node; `home` is for the driver alone. Lives on one event loop."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._live: dict[str, Watched] = {}
        self._dead: dict[str, Death] = {}
        self._watchers: set[asyncio.Queue[Death]] = set()
        self._groups: Cgroups | None = None
        self._engine: Engine | None = None
        self._agent = -1
        self._namespaces = UserNamespaces()
        self._visitor = Visitor()
        self._honest = Honest(home, self._visitor, self._pidfds)
        self._cpus = Cpus(frozenset(os.sched_getaffinity(0)))
        self._profile = seccomp.profile()
        self._oom_score_adj = max(0, int(Path("/proc/self/oom_score_adj").read_text()))

    # --- what it can do

    def info(self) -> Info:
        return INFO

    async def check(self) -> None:
        """Raises MissingTool telling what to install, enable or be."""
        if os.geteuid() != 0:
            raise MissingTool("the container backend must run as root")
        if tuple(int(part) for part in os.uname().release.split(".")[:2]) < KERNEL:
            raise MissingTool(f"the container backend needs Linux {KERNEL[0]}.{KERNEL[1]} or later")
        if int(Path("/proc/sys/user/max_user_namespaces").read_text()) == 0:
            raise MissingTool("user namespaces are switched off: sysctl user.max_user_namespaces=65536")
        find()
        binary()
        self._cgroups()

    def _cgroups(self) -> Cgroups:
        if self._groups is None:
            self._groups = Cgroups.here(self.home)
        self._groups.prepare()
        return self._groups

    def _running(self) -> Engine:
        """The engine and what it needs, made at first use."""
        groups = self._cgroups()
        if self._engine is None:
            orphans.adopt()
            state = self.home / ".engine"
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            hybrid = bool(groups.layout.v1)
            self._engine = Engine(state, groups.layout.v2 if hybrid else None)
        if self._agent < 0:
            self._agent = sealed(binary())
        return self._engine

    # --- lifecycle

    async def create(self, order: Order, rootfs: Rootfs) -> Handle:
        """Start chronus as PID 1 on `rootfs`; see Driver.create."""
        sandbox = checks.safe_id(order.sandbox)
        nofile = checks.possible(order.limits)
        checks.real_mount_points(rootfs.path)
        await self._nothing_of(sandbox)
        try:
            async with asyncio.timeout(START_WITHIN):
                watched = await self._start(order, rootfs, nofile)
        except BaseException as error:
            cause = self._explained(sandbox, error)
            await asyncio.shield(self.destroy(sandbox))
            if cause is error:
                raise
            raise cause from error
        return _handle(sandbox, watched, rootfs)

    async def _start(self, order: Order, rootfs: Rootfs, nofile: int) -> Watched:
        sandbox, engine, group = order.sandbox, self._running(), self._cgroups().of(order.sandbox)
        directory = self.home / sandbox
        directory.mkdir(mode=0o700)
        cgroup = f"/{group.path}/{ENGINE}"
        rules = engine.filter or self._profile
        base = rootfs.uid_base

        cpus = self._cpus.take(sandbox, order.limits.cpu)

        def adopt(pid: int) -> None:
            group.make(order.limits, order.spec.cpu_class)
            if cpus != self._cpus.all:
                group.pin(listed(cpus))
            group.adopt(pid)

        owner = base if engine.limits_from_inside else 0
        async with self._namespaces.owned(base, oci.IDS, owner=owner) as userns:
            config = oci.render(engine.stage, base, userns, cgroup, nofile, self._oom_score_adj, rules)
            with door.listening(directory) as listening:
                pid = await engine.run(
                    Job(sandbox, rootfs.path, directory, config, listening.fileno(), self._agent, adopt)
                )
        await until(lambda: checks.executes(pid, self._agent), f"starting the agent of {sandbox}")
        checks.confined(pid)
        watched = self._watch(sandbox, pid, None)
        await self._honest.show(watched.pidfd)
        return watched

    def _pidfds(self) -> list[int]:
        return [watched.pidfd for watched in self._live.values() if watched.alive]

    def _explained(self, sandbox: str, error: BaseException) -> BaseException:
        """`error` as the contract names it."""
        if isinstance(error, InfraError | ProcessLookupError) and self._cgroups().of(sandbox).oom_kills():
            return LimitError("limits.memory is too small to start a sandbox", field="limits.memory")
        if isinstance(error, TimeoutError):
            return AgentCrippled(f"the image holds up the engine: nothing started in {START_WITHIN:g} s")
        if not isinstance(error, OSError):
            return error
        if error.errno in FULL:
            return DiskFull.during(f"no room under {self.home}", error)
        return InfraError.during(f"starting {sandbox}", error)

    async def _nothing_of(self, sandbox: str) -> None:
        """A repeated create starts anew: what an earlier attempt left is in the way."""
        if (self.home / sandbox).exists() or self._cgroups().of(sandbox).exists():
            await self.destroy(sandbox)

    async def destroy(self, sandbox: str) -> None:
        """Kill and remove all of it; see Driver.destroy. Raises InfraError when a process will not die."""
        checks.safe_id(sandbox)
        if watched := self._live.pop(sandbox, None):
            watched.close()
        self._dead.pop(sandbox, None)
        self._cpus.free(sandbox)
        group = self._cgroups().of(sandbox)
        try:
            group.kill()
            await until(group.remove, f"ending the processes of {sandbox}")
            orphans.reap(group.path)
            for directory in (self.home / sandbox, self.home / ".engine" / sandbox):
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(directory)
        except OSError as error:
            raise InfraError.during(f"removing {sandbox}", error) from error

    async def channel(self, sandbox: str) -> Channel:
        """A connection to chronus; see Driver.channel."""
        try:
            connection = door.connected(self.home / checks.safe_id(sandbox))
        except FileNotFoundError:
            raise NoSuchSandbox(f"there is no sandbox {sandbox} on this node") from None
        except (ConnectionRefusedError, BlockingIOError) as error:
            raise AgentCrippled.during(f"the agent of {sandbox} does not accept", error) from error
        return Channel(connection, descriptors=True, cgroup=self._cgroups().of(sandbox).v2)

    async def recover(self, handle: Handle) -> None:
        """Take over by pid and start time; see Driver.recover."""
        sandbox = checks.safe_id(handle.sandbox)
        if sandbox in self._live:
            return
        try:
            state = orjson.loads(handle.state)
            self._watch(sandbox, int(state["pid"]), int(state["start"]))
            if pinned := parse(self._cgroups().of(sandbox).pinned()):
                self._cpus.keep(sandbox, pinned)
        except (ProcessLookupError, ValueError, KeyError):
            raise NoSuchSandbox(f"{sandbox} died while its node was down") from None

    async def close(self) -> None:
        """Let go of what no sandbox uses; sandboxes live on, for `recover`. Repeatable."""
        for watched in self._live.values():
            watched.close()
        self._live.clear()
        await self._honest.close(used=self._groups is not None and bool(self._groups.found()))
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._agent >= 0:
            os.close(self._agent)
            self._agent = -1
        self._namespaces.close()
        self._visitor.close()
        if self._groups is not None:
            self._groups.remove_parents()

    async def leftovers(self) -> frozenset[str]:
        """Every sandbox of which this home has a cgroup or a directory, live or left over."""
        directories = (child.name for child in self.home.glob("[!.]*")) if self.home.exists() else ()
        return self._cgroups().found() | frozenset(directories)

    # --- deaths

    def _watch(self, sandbox: str, pid: int, start: int | None) -> Watched:
        watched = Watched.open(pid, start, lambda: self._died(sandbox))
        self._live[sandbox] = watched
        return watched

    def _died(self, sandbox: str) -> None:
        kills = self._cgroups().of(sandbox).oom_kills()
        reason = (
            f"out of memory: the kernel killed {kills} of its processes, its agent last"
            if kills
            else "its agent was ended"
        )
        death = Death(sandbox, Failure.LIMIT, reason)
        self._dead[sandbox] = death
        for queue in self._watchers:
            queue.put_nowait(death)

    async def inspect(self, sandbox: str) -> Death | None:
        """See Driver.inspect."""
        if death := self._dead.get(sandbox):
            return death
        if sandbox not in self._live:
            raise NoSuchSandbox(f"there is no sandbox {sandbox} on this node")
        return None

    def watch(self) -> AsyncIterator[Death]:
        """Deaths from now on; see Driver.watch."""
        queue: asyncio.Queue[Death] = asyncio.Queue()
        self._watchers.add(queue)
        return self._deaths(queue)

    async def _deaths(self, queue: asyncio.Queue[Death]) -> AsyncIterator[Death]:
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    # --- optional abilities

    async def pause(self, sandbox: str) -> None:
        """Freeze every process; repeatable. Raises NoSuchSandbox, InfraError."""
        await self._freeze(sandbox, frozen=True)

    async def resume(self, sandbox: str) -> None:
        """Undo `pause` and what `reclaim` allowed; repeatable. Raises NoSuchSandbox, InfraError."""
        with _files_of(sandbox):
            self._cgroups().of(checks.safe_id(sandbox)).allow_swap(allowed=False)
        await self._freeze(sandbox, frozen=False)

    async def reclaim(self, sandbox: str) -> None:
        """See CanReclaim. Caches, and where the machine has swap, the memory of processes too."""
        group = self._cgroups().of(checks.safe_id(sandbox))
        with _files_of(sandbox):
            if not group.exists():
                raise FileNotFoundError(group.path)
            if not group.is_frozen():
                raise InfraError(f"{sandbox} is not paused")
            await asyncio.to_thread(group.reclaim, RECLAIM_WITHIN)

    async def connect(self, sandbox: str, port: int) -> socket.socket:
        """See CanConnect. Both loopback addresses are tried."""
        watched = self._live.get(checks.safe_id(sandbox))
        try:
            if watched is None:
                raise ProcessLookupError
            return await ports.connected(self._visitor, watched.pidfd, port)
        except ProcessLookupError:
            raise NoSuchSandbox(f"there is no sandbox {sandbox} on this node") from None
        except OSError as error:
            raise InfraError.during(f"entering the network of {sandbox}", error) from error

    async def _freeze(self, sandbox: str, *, frozen: bool) -> None:
        group = self._cgroups().of(checks.safe_id(sandbox))
        with _files_of(sandbox):
            group.freeze(frozen)
        await until(lambda: group.is_frozen() == frozen, f"{'freezing' if frozen else 'thawing'} {sandbox}")

    async def oom_kills(self, sandbox: str) -> int:
        """See CountsOom."""
        return self._cgroups().of(checks.safe_id(sandbox)).oom_kills()


@contextlib.contextmanager
def _files_of(sandbox: str) -> Iterator[None]:
    """Within the block an OSError of the sandbox's cgroup files is told as the contract names it."""
    try:
        yield
    except FileNotFoundError:
        raise NoSuchSandbox(f"there is no sandbox {sandbox} on this node") from None
    except OSError as error:
        raise InfraError.during(f"the cgroups of {sandbox}", error) from error


def _handle(sandbox: str, watched: Watched, rootfs: Rootfs) -> Handle:
    state = {"pid": watched.pid, "start": watched.start, "uid_base": rootfs.uid_base}
    return Handle(sandbox, INFO.name, INFO.version, orjson.dumps(state))
