"""What /proc and /sys tell inside of memory, processors, load and uptime: the sandbox's own, by lxcfs.

lxcfs is a file system in user space that answers by the caller's cgroups. One process of it serves a driver's
sandboxes and outlives the driver, as they do; its files are put over those of each sandbox's /proc. Should it
die, reads inside fail (ENOTCONN) until another one serves, a moment later. Nothing here reads through it, but
in a thread that is given up, and lxcfs with it, when it takes too long. Without lxcfs the machine's own
figures show.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from dsec.bus.errors import MissingTool
from dsec.bus.threads import outlast
from dsec.plugins.container.process import Watched
from dsec.plugins.container.visits import CLONE_NEWNS, Visitor

log = logging.getLogger(__name__)

RUN: Final = Path("/run")
PROGRAM: Final = "lxcfs"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FILES: Final = (
    *(f"proc/{name}" for name in ("cpuinfo", "diskstats", "loadavg", "meminfo", "stat", "swaps", "uptime")),
    "sys/devices/system/cpu/online",
)
WITHIN: Final = 20.0
"""Seconds for lxcfs to serve, which takes milliseconds."""
AGAIN: Final = 1.0
"""Seconds until one that could not be started, or died, is started anew."""
_AT_EMPTY_PATH, _CLONE, _CLOEXEC = 0x1000, 1, os.O_CLOEXEC
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_F_EMPTY_PATH: Final = 4
_RDONLY_NOSUID_NODEV_NOEXEC: Final = 0b1111
_DETACH: Final = 2
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def check() -> str:
    """The program. Raises MissingTool."""
    program = shutil.which(PROGRAM, path=PATH)
    if program is None:
        raise MissingTool("lxcfs is not installed, sandboxes see the machine's memory: apt-get install lxcfs")
    if not Path("/dev/fuse").exists():
        raise MissingTool("/dev/fuse is not there, sandboxes see the machine's memory: modprobe fuse")
    return program


class Honest:
    """lxcfs of one driver; `live` gives the pidfds of its sandboxes. Lives on one event loop."""

    def __init__(self, home: Path, visitor: Visitor, live: Callable[[], Iterable[int]]) -> None:
        name = hashlib.blake2s(os.fsencode(home.resolve()), digest_size=8).hexdigest()
        self._point = RUN / f"dsec-{name}" / "lxcfs"
        self._home = home.resolve()
        self.pid_file = self._point.with_suffix(".pid")
        self._visitor = visitor
        self._live = live
        self._serving: Watched | None = None
        self._files: dict[str, int] = {}
        self._starting = asyncio.Lock()
        self._not_before = 0.0
        self._mending: asyncio.Task[None] | None = None
        self._closed = False

    async def show(self, pidfd: int) -> None:
        """Put its files over those of the sandbox of that PID 1. Whatever fails leaves the machine's."""
        try:
            if await self._ready():
                await self._visit(pidfd)
        except (OSError, TimeoutError) as error:
            log.warning("a sandbox sees the machine's memory and processors: %s", error)

    async def _visit(self, pidfd: int) -> None:
        trees: dict[str, int] = {}
        try:
            for name, file in self._files.items():
                trees[name] = _clone(file)
        except OSError:
            _close(trees)
            raise
        await self._visitor.visit(pidfd, CLONE_NEWNS, partial(_cover, trees))

    async def _ready(self) -> bool:
        """Whether lxcfs serves; it is started at first use, and taken over from a former process."""
        if not self._files:
            async with self._starting:
                now = asyncio.get_running_loop().time()
                if not (self._files or self._closed) and now >= self._not_before:
                    self._not_before = now + AGAIN
                    await self._begin()
        return bool(self._files)

    async def _begin(self) -> None:
        try:
            program = check()
        except MissingTool as missing:
            log.info("%s", missing)
            self._not_before = float("inf")
            return
        pid = self._former()
        if pid is None:
            _sweep()
            unmount(self._point)
            self._point.parent.mkdir(mode=0o700, exist_ok=True)
            self._point.mkdir(mode=0o700, exist_ok=True)
            _home_of(self._point).write_text(str(self._home))
            argv = [program, "-f", "-l", "--enable-cfs", "-p", str(self.pid_file), str(self._point)]
            pid = _spawned(argv)
        self._serving = Watched.open(pid, None, self._died)
        opening: asyncio.Future[dict[str, int]] | None = None
        try:
            async with asyncio.timeout(WITHIN):
                while not _mounted(self._point):  # noqa: ASYNC110 - the table of mounts tells only who asks
                    await asyncio.sleep(0.002)
                opening = asyncio.get_running_loop().run_in_executor(None, _opened, self._point)
                self._files = await asyncio.shield(opening)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # whoever waits for it in a read is let go
            if opening is not None:
                await outlast(opening, _close)
            raise

    def _former(self) -> int | None:
        """The process that a former driver of this home started, if it serves."""
        return _serving(self._point) if _mounted(self._point) else None

    def _died(self) -> None:
        """Serve again, and cover in the sandboxes what fails there now."""
        assert self._serving is not None
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._serving.pid, os.WNOHANG)
        self._forget()
        if not self._closed:
            log.error("lxcfs died; it is started again")
            self._mending = asyncio.get_running_loop().create_task(self._mend())

    async def _mend(self) -> None:
        for pidfd in list(self._live()):
            with contextlib.suppress(OSError):
                await self._visitor.visit(pidfd, CLONE_NEWNS, _uncover)
        while not self._closed and self._not_before != float("inf"):
            with contextlib.suppress(OSError, TimeoutError):
                if await self._ready():
                    break
            await asyncio.sleep(AGAIN / 4)
        for pidfd in list(self._live()):
            await self.show(pidfd)

    def _forget(self) -> None:
        if self._serving is not None:
            self._serving.close()
            self._serving = None
        _close(self._files)

    async def close(self, *, used: bool) -> None:
        """Let go of it; unless it is `used` by sandboxes that live on, nothing of it is left. Repeatable."""
        self._closed = True
        if self._mending is not None:
            self._mending.cancel()
            await asyncio.gather(self._mending, return_exceptions=True)
        pid = self._serving.pid if self._serving is not None else self._former()
        self._forget()
        if not used:
            if pid is not None:
                await _ended(pid)
            _clear(self._point)
        self._closed, self._not_before, self._mending = False, 0.0, None


_QUIET: Final = [
    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
    (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
    (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
]


def _home_of(point: Path) -> Path:
    """The file that tells for which home lxcfs serves at `point`."""
    return point.with_suffix(".home")


def _serving(point: Path) -> int | None:
    """The process of `point`, if it lives."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(point.with_suffix(".pid").read_text())
        if os.fsencode(point) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return pid
    return None


def _sweep() -> None:
    """End those of homes that are there no more: their nodes were killed, and nobody starts them again."""
    for told in RUN.glob("dsec-*/lxcfs.home"):
        with contextlib.suppress(OSError):
            if not Path(told.read_text()).exists():
                if (pid := _serving(told.with_suffix(""))) is not None:
                    os.kill(pid, signal.SIGKILL)
                _clear(told.with_suffix(""))


def _clear(point: Path) -> None:
    """Nothing is left at `point`, whose process has ended."""
    unmount(point)
    point.with_suffix(".pid").unlink(missing_ok=True)
    _home_of(point).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        point.rmdir()
        point.parent.rmdir()


def _spawned(argv: list[str]) -> int:
    """It outlives us: a session of its own, and nothing of ours."""
    return os.posix_spawn(argv[0], argv, os.environ, file_actions=_QUIET, setsid=True, setsigmask=[])


async def _ended(pid: int) -> None:
    """It holds nothing that a kill would spoil."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        await asyncio.to_thread(os.waitpid, pid, 0)


def _close(files: dict[str, int]) -> None:
    while files:
        os.close(files.popitem()[1])


def _mounted(point: Path) -> bool:
    """Asks the kernel's table: a stat might wait for lxcfs."""
    where = b" %s " % os.fsencode(point)
    with open("/proc/self/mountinfo", "rb") as table:  # noqa: PTH123 - lines of bytes
        return any(where in line and b" - fuse.lxcfs " in line for line in table)


def unmount(point: Path) -> None:
    """Whatever is mounted there, in use or not; silent when nothing is."""
    while _mounted(point) and _LIBC.umount2(os.fsencode(point), _DETACH) == 0:
        pass


def _opened(point: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in FILES:
        with contextlib.suppress(FileNotFoundError):
            found[name] = os.open(point / name, os.O_PATH | os.O_CLOEXEC)
    return found


def _clone(file: int) -> int:
    """A detached mount of one file, read-only. Nobody is asked: the file was looked up when it was opened."""
    tree = int(_syscall(_OPEN_TREE, file, b"", _CLONE | _CLOEXEC | _AT_EMPTY_PATH))
    attributes = (ctypes.c_uint64 * 4)(_RDONLY_NOSUID_NODEV_NOEXEC, 0, 0, 0)
    try:
        _syscall(
            _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), ctypes.sizeof(attributes)
        )
    except OSError:
        os.close(tree)
        raise
    return tree


def _cover(trees: dict[str, int]) -> None:
    """In the sandbox's mount namespace; closes what it is given, whatever comes of it."""
    try:
        _uncover()
        for name, tree in trees.items():
            with contextlib.suppress(FileNotFoundError):
                _syscall(_MOVE_MOUNT, tree, b"", -100, b"/" + name.encode(), _F_EMPTY_PATH)
    finally:
        _close(trees)


def _uncover() -> None:
    """In the sandbox's mount namespace: what a former lxcfs had there goes. Its /proc does not tell us where
    we are, but nothing else is mounted at these places."""
    for name in FILES:
        while _LIBC.umount2(b"/" + name.encode(), _DETACH) == 0:
            pass


def _syscall(number: int, *arguments: object) -> int:
    converted = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *converted))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
