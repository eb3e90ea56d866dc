"""Runs the OCI engine, crun or else runc, once per sandbox, already inside the sandbox's cgroups.

The engine starts, and then waits for its configuration, which it reads from a pipe. Only when it has been
moved into the sandbox's cgroups is the configuration written; so nothing it forks can be outside of them, and
if this process dies in between, the pipe closes and the engine ends with an error. crun's own cgroup code is
off: it refuses hybrid machines, and `cgroups.Group` knows more. Some facts of crun 1.8 shape this file:

- it looks at /sys/fs/cgroup even so: on hybrid machines it must not see version 2;
- it opens the root file system as the sandbox's root, whom the node's directories may not let through.
  So it runs in a mount namespace of its own, where version 2 is hidden and the root lies at `stage`;
- it copies its binary and executes itself again, unless it was started from a sealed memfd;
- it hands descriptors 0 to 2 to the sandbox's root by chown, so none of them may be a file of the host.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from dsec.bus.errors import InfraError, MissingTool
from dsec.bus.threads import finish

NAMES: Final = ("crun", "runc")
"""Engines that will do, best first: runc takes three times the CPU time."""
PID_FILE: Final = "pid"
CONFIG_FILE: Final = "config.json"
STAGES: Final = (Path("/media"), Path("/mnt"), Path("/srv"))
"""Where the engine may find the root file system. Not under /proc or /sys: the kernel lets a user namespace
mount those afresh only where it sees all of them, and crun would show the host's /sys instead."""
SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
CLONE_FS, CLONE_NEWNS = 0x200, 0x20000
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1000, 0x4000, 0x40000, 2
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def find() -> Path:
    """The engine's program. Raises MissingTool."""
    for name in NAMES:
        found = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        if found is not None:
            return Path(found)
    raise MissingTool(f"no container engine is installed: apt-get install {NAMES[0]}")


def sealed(program: Path) -> int:
    """A descriptor of an unchangeable copy of `program` in memory. Raises OSError."""
    copy = os.memfd_create(program.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with program.open("rb") as source:
            size = os.fstat(source.fileno()).st_size
            while os.sendfile(copy, source.fileno(), None, size):
                pass
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(copy)
        raise
    return copy


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the engine.

    `config` names the engine's `stage` as the root; `adopt` moves a pid into the sandbox's cgroups; `door` is
    a listening socket; `agent` is what PID 1 executes.
    """

    sandbox: str
    rootfs: Path
    bundle: Path
    config: bytes
    door: int
    agent: int
    adopt: Callable[[int], None]


@dataclass(slots=True)
class Engine:
    """The engine of one driver; `state` is its directory, `hide` a mount point that it must not see.

    `stage`, one of `STAGES`, is where it sees the root file system; `filter` the seccomp program that it has
    compiled, if it can take that back. Raises MissingTool.
    """

    state: Path
    hide: Path | None
    stage: Path = field(init=False)
    name: str = field(init=False)
    filter: bytes | None = None
    _program: int = field(init=False)
    _hands: ThreadPoolExecutor = field(init=False)
    _host: int = -1

    def __post_init__(self) -> None:
        self.stage = _stage(self.state)
        program = find()
        self.name = program.name
        self._program = sealed(program)
        self._hands = ThreadPoolExecutor(1, "engine")

    @property
    def limits_from_inside(self) -> bool:
        """Whether rlimits are set by PID 1 itself; from outside that takes the namespace's owner, or
        CAP_SYS_RESOURCE, which root of an outer container often lacks."""
        return self.name == "crun"

    async def run(self, job: Job) -> int:
        """Start PID 1 of a sandbox and return its pid on the host.

        Cancelled or not, the engine has ended when this returns; PID 1 may live if it got so far.
        Raises InfraError with the engine's words, OSError.
        """
        pid, words = await finish(partial(self._start, job), self._hands, undo=_give_up)
        try:
            status = await _ended(pid)
            if status:
                raise InfraError(f"{self.name} failed with status {status}: {_text(words) or 'no message'}")
            self._keep_filter(job)
            return int((job.bundle / PID_FILE).read_text())
        finally:
            os.close(words)

    def _keep_filter(self, job: Job) -> None:
        """Remember what crun made of the profile; the next job may give it instead, and saves 1.2 CPU ms."""
        file = self.state / job.sandbox / "seccomp.bpf"
        if self.filter is None and file.exists():
            self.filter = file.read_bytes()

    def _start(self, job: Job) -> tuple[int, int]:
        """Spawn, adopt, configure; returns the engine's pid and the memfd that its messages go to."""
        words = os.memfd_create("engine-messages", os.MFD_CLOEXEC)
        reading, writing = os.pipe()
        try:
            pid = self._spawn(job, reading, words)
        except BaseException:
            os.close(words)
            os.close(writing)
            raise
        finally:
            os.close(reading)
        try:
            job.adopt(pid)
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, max(65_536, len(job.config)))
            os.write(writing, job.config)
        except BaseException:
            _kill(pid)
            os.close(words)
            raise
        finally:
            os.close(writing)
        return pid, words

    def _spawn(self, job: Job, config: int, words: int) -> int:
        # sources are lifted above the targets, which posix_spawn would otherwise overwrite in passing
        wanted = {0: job.door, 1: words, 2: words, 3: job.agent, 4: config}
        lifted = {target: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for target, fd in wanted.items()}
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in lifted.items()]
        try:
            (job.bundle / CONFIG_FILE).symlink_to("/proc/self/fd/4")
            self._enter(job.rootfs)
            return os.posix_spawn(
                f"/proc/self/fd/{self._program}", self._argv(job), {}, file_actions=actions, setsigmask=[]
            )
        finally:
            self._leave()
            for source in lifted.values():
                os.close(source)

    def _argv(self, job: Job) -> list[str]:
        managing = ["--cgroup-manager=disabled"] if self.name == "crun" else []
        files = ["--bundle", str(job.bundle), "--pid-file", str(job.bundle / PID_FILE)]
        return [
            self.name,
            *managing,
            "--root",
            str(self.state),
            "run",
            "-d",
            "--preserve-fds=1",
            *files,
            job.sandbox,
        ]

    def _enter(self, rootfs: Path) -> None:
        """Into a new mount namespace; this thread has a working directory of its own, else it could not."""
        if self._host < 0:
            _check(_LIBC.unshare(CLONE_FS), "unshare")
            self._host = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        _check(_LIBC.unshare(CLONE_NEWNS), "unshare")
        _check(_LIBC.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "making mounts private")
        if self.hide is not None:
            _check(_LIBC.umount2(bytes(self.hide), MNT_DETACH), f"hiding {self.hide}")
        _check(_LIBC.mount(bytes(rootfs), bytes(self.stage), None, MS_BIND, None), f"binding {rootfs}")

    def _leave(self) -> None:
        if self._host >= 0:
            _check(_LIBC.setns(self._host, CLONE_NEWNS), "setns")

    def close(self) -> None:
        """Give back the thread and its descriptors; no run may be under way."""
        self._hands.shutdown()
        for descriptor in (self._program, self._host):
            if descriptor >= 0:
                os.close(descriptor)
        self._program = self._host = -1


def _stage(state: Path) -> Path:
    for stage in STAGES:
        if stage.is_dir() and not state.resolve().is_relative_to(stage):
            return stage
    raise MissingTool(f"one of {', '.join(map(str, STAGES))} must exist, apart from the node's home")


async def _ended(pid: int) -> int:
    """Wait for child `pid`; its exit code, negative for a signal. Cancelled, the child is killed first."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    watched = os.pidfd_open(pid)
    loop.add_reader(watched, done.set)
    try:
        await done.wait()
    except asyncio.CancelledError:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        loop.remove_reader(watched)
        os.close(watched)
        status = _reap(pid)
    return status


def _give_up(started: tuple[int, int]) -> None:
    """End an engine whose start was cancelled half-way."""
    pid, words = started
    _kill(pid)
    os.close(words)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    _reap(pid)


def _reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _text(words: int) -> str:
    return os.pread(words, 4096, 0).decode(errors="replace").strip()


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
