"""A cgroup of its own for each exec, on the v2 hierarchy: how a command's whole tree is found and killed.

Processes inside cannot leave it: no cgroup file system is writable there. On a hybrid machine the v2
hierarchy has no controllers, which `cgroup.kill` (Linux 5.14) does not need.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dsec.bus.chronus.limits import apply, beside, oom_kills
from dsec.bus.errors import InfraError, MissingTool
from dsec.bus.spec import Limits

HYBRID: Final = Path("/sys/fs/cgroup/unified")
UNIFIED: Final = Path("/sys/fs/cgroup")
PATIENCE: Final = 10.0  # s until processes that cannot be killed are given up
SHORTEST, LONGEST = 0.001, 0.02  # s between two looks


def v2_root() -> Path:
    """Where the v2 hierarchy is mounted. Raises MissingTool when it is not."""
    for root in (UNIFIED, HYBRID):
        if (root / "cgroup.procs").exists() and (root / "cgroup.controllers").exists():
            return root
    raise MissingTool(f"no cgroup v2 hierarchy at {UNIFIED} or {HYBRID}: mount one")


class ExecCgroup:
    """The cgroup of one exec, a directory below its sandbox's; made by `make`, found again by its path."""

    __slots__ = ("_beside", "path")

    def __init__(self, path: Path, *, found: bool = False) -> None:
        """`found`: of a former process, so what it has on other hierarchies is looked for there."""
        self.path = path
        self._beside = tuple(set(self._others().values())) if found else ()

    def make(self, limits: Limits | None = None) -> None:
        """With its own limits (cpu, memory, pids); also when it is there already, left by a node that was
        killed. Raises InfraError, Unsupported.
        """
        try:
            self.path.mkdir(exist_ok=True)
            if limits is not None:
                self._beside = tuple(set(self._others().values()))
                self._beside = apply(limits, self.path, self._others())
        except OSError as error:
            raise InfraError.during(f"making the cgroup {self.path}", error) from error

    def open_procs(self) -> list[int]:
        """Descriptors through which a process joins by writing "0", whatever its own rights."""
        with contextlib.ExitStack() as undo:
            opened = [_opened(place / "cgroup.procs", undo) for place in (self.path, *self._beside)]
            undo.pop_all()
        return opened

    def oom_kills(self) -> int:
        """How many of its processes the kernel has killed for its own limit of memory."""
        return oom_kills(self.path, self._others())

    def _others(self) -> dict[str, Path]:
        return beside(self.path, v2_root())

    def populated(self) -> bool:
        """Whether a live process is inside; False when the cgroup is gone."""
        try:
            return b"populated 1" in (self.path / "cgroup.events").read_bytes()
        except OSError:
            return False

    async def kill(self) -> None:
        """SIGKILL to every process inside, none is alive on return; repeatable. Raises InfraError."""
        try:
            (self.path / "cgroup.kill").write_bytes(b"1")
        except OSError:
            return  # it is gone, and so are they
        await _until(lambda: not self.populated(), f"processes in {self.path} do not die")

    async def remove(self, *, empty: bool = False) -> None:
        """Kill what is left and remove the cgroup; repeatable. `empty`: likely so, then nothing is killed."""
        if empty and self._rmdir():
            return
        await _until(self._wipe, f"{self.path} stays busy")

    def _wipe(self) -> bool:
        """One attempt; a process that joined since the last one is killed by the next."""
        if self._rmdir():
            return True
        with contextlib.suppress(OSError):
            (self.path / "cgroup.kill").write_bytes(b"1")
        return False

    def _rmdir(self) -> bool:
        gone = [_removed(place) for place in (*self._beside, self.path)]
        return all(gone)


def _opened(file: Path, undo: contextlib.ExitStack) -> int:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InfraError.during(f"opening {file}", error) from error
    undo.callback(os.close, descriptor)
    return descriptor


def _removed(place: Path) -> bool:
    try:
        place.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # EBUSY: a dead process is not quite gone
        return False
    return True


async def _until(done: Callable[[], bool], failure: str) -> None:
    """Look again and again, each time after a longer pause."""
    pause, deadline = SHORTEST, time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise InfraError(f"{failure} after {PATIENCE:.0f} s")
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST)
