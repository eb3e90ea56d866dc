"""CPU accounting by cgroup, percentiles, and a platform on a scratch home."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from dsec.bus.errors import InfraError, MissingTool
from dsec.sdk.testing import platform
from dsec.sdk.testing.plugin import add_base, default_base

Tell = Callable[[str], None]


def percentile(samples: Sequence[float], share: float) -> float:
    """The nearest-rank percentile; `share` in 0…1."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Cpu:
    """CPU time of this process and all that it starts from now on, sandboxes included, by cgroup accounting.

    On cgroup v1 children stay in the cpuacct group of their parent, whatever other groups the platform puts
    them into; on v2 the platform's own group `dsec` is added.
    """

    def __init__(self, group: Path, others: Sequence[Path]) -> None:
        self._groups = [group, *others]

    def ms(self) -> float:
        """CPU milliseconds so far."""
        return sum(_usage_ms(group) for group in self._groups)


def _usage_ms(group: Path) -> float:
    v1 = group / "cpuacct.usage"
    with contextlib.suppress(FileNotFoundError):
        return int(v1.read_text()) / 1e6
    with contextlib.suppress(FileNotFoundError):
        return int((group / "cpu.stat").read_text().split()[1]) / 1e3
    return 0.0


@contextlib.contextmanager
def accounting() -> Iterator[Cpu]:
    """Account for this process in a group of its own; it goes back where it was afterwards."""
    v1, v2 = Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup")
    root = v1 if v1.is_dir() else v2
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    marks = ("cpuacct",) if v1.is_dir() else ("",)
    former = next(line.split(":")[2] for line in lines if line.split(":")[1].split(",")[0] in marks)
    group = root / f"dsec-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield Cpu(group, [] if v1.is_dir() else [v2 / "dsec"])
    finally:
        (root / former.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
        _remove(group)


def _remove(group: Path) -> None:
    for _ in range(100):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.02)


@contextlib.asynccontextmanager
async def live(tell: Tell) -> AsyncIterator[platform.Part]:
    """A whole platform on a scratch home, with the image `base`."""
    home = Path(tempfile.mkdtemp(prefix="dsec-bench-", dir=scratch()))
    try:
        tell("importing the base image")
        await add_base(home, await default_base())
        tell("starting the platform")
        async with platform.running(home) as part:
            yield part
    finally:
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)


def scratch() -> str:
    """A directory on a file system from which EROFS images can be mounted (not tmpfs)."""
    return os.environ.get("DSEC_BENCH_DIR", "/var/tmp")


async def in_flight(count: int, limit: int, work: Callable[[int], Awaitable[object]]) -> float:
    """Run `work(0…count-1)`, `limit` at once; the seconds it took."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(limit):
            group.create_task(worker())
    return time.perf_counter() - started


async def process(*argv: str) -> None:
    """Run a program to its end, quietly. Raises MissingTool, InfraError."""
    try:
        running = await asyncio.create_subprocess_exec(*argv, stdout=DEVNULL, stderr=DEVNULL)
    except FileNotFoundError as error:
        raise MissingTool(f"{argv[0]} is not installed: `make setup` installs it") from error
    if await running.wait():
        raise InfraError(f"{' '.join(argv)} failed with {running.returncode}")
