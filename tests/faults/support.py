"""A platform in two halves, each a process of its own, to be killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from dsec.bus.errors import DsecError, InfraError
from dsec.bus.home import Home
from dsec.sdk import Client
from dsec.sdk.testing import platform
from dsec.sdk.testing.platform import Part
from dsec.sdk.testing.traces import walk
from tests.wire.support import until


class Halves:
    """`home` is both halves' own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.node = f"n-f{os.getpid()}"  # of this test run alone: so are the ids of its sandboxes
        self.control: Part
        self.edge: Part

    @property
    def broker_pid(self) -> int:
        """Of the broker that serves now: a killed one is started again by its supervisor."""
        children = Path(f"/proc/{self.control.process.pid}/task/{self.control.process.pid}/children")
        for child in children.read_text().split():
            with contextlib.suppress(OSError):
                if b"nats-server" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        raise InfraError("the broker is not running")

    def client(self) -> Client:
        return self.control.client()

    async def restart_edge(self) -> None:
        """kill -9, and the same again."""
        await self.edge.kill()
        await self.start_edge()

    async def start_edge(self) -> None:
        self.edge = await platform.spawn(self.home, only="edge", options=("--node", self.node))

    async def start_control(self) -> None:
        self.control = await platform.spawn(self.home, only="control", options=("--node", self.node))

    async def import_base(self, base: Path, name: str = "base") -> None:
        where = ("--home", str(self.home), "--node", self.node)
        await platform.command("image", "import", *where, "--kind", "base", name, str(base))

    def log(self) -> str:
        """What the edges have told."""
        return (self.home / "up-edge.log").read_text()

    def leftovers(self, sandbox: str = "") -> list[str]:
        """What this machine has of `sandbox`, or of any of this node, and of unfinished packs."""
        prefix = f"s-{self.node.removeprefix('n-')}-"
        with Path("/proc/self/mountinfo").open() as mounts:
            found = {line.split()[4] for line in mounts if str(self.home) in line and "/sandboxes/" in line}
        node = Home(self.home).node(self.node)
        for directory, names, _ in os.walk("/sys/fs/cgroup"):
            if "dsec" in directory:
                found |= {f"{directory}/{name}" for name in names if name.startswith(prefix)}
        for directory, names in walk(node):
            found |= {f"{directory}/{name}" for name in names if name.startswith(prefix)}
        workshops = {str(path) for path in node.glob("images/*/.import-*")}
        return sorted(path for path in found | workshops if sandbox in path)


@contextlib.asynccontextmanager
async def halves(home: Path, base: Path) -> AsyncIterator[Halves]:
    """Both run while the block does; at its end every sandbox is destroyed."""
    running = Halves(home)
    await running.import_base(base)
    await running.start_control()
    try:
        await running.start_edge()
        yield running
        await empty(running)
        await running.edge.stop()
    finally:
        await running.control.stop()


async def empty(running: Halves) -> None:
    """Destroy what there is."""
    async with running.client() as client:
        for record in [record async for record in client.list()]:
            with contextlib.suppress(DsecError):
                await (await client.attach(record.sandbox)).destroy()


async def frozen(pid: int) -> None:
    """SIGSTOP, in force for all its threads: a thread on another processor runs on for a moment."""
    os.kill(pid, signal.SIGSTOP)
    threads = [path / "stat" for path in Path(f"/proc/{pid}/task").iterdir()]
    await until(lambda: all(stat.read_text().rpartition(") ")[2][0] == "T" for stat in threads), within=5)


@contextlib.contextmanager
def disk(at: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes of its own, mounted at `at`."""
    at.mkdir(parents=True)
    image = at.parent / f".{at.name}.ext4"
    with image.open("wb") as file:
        file.truncate(size)
    for command in (["mkfs.ext4", "-q", "-m0", str(image)], ["mount", "-o", "loop", str(image), str(at)]):
        subprocess.run(command, check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)
        image.unlink()


@contextlib.contextmanager
def filled(at: Path) -> Iterator[None]:
    """Not a byte is free there while the block runs."""
    fills: list[Path] = []
    for size in (16 << 20, 1 << 20, 4096):
        with contextlib.suppress(OSError):
            while True:
                fills.append(at / f"fill-{len(fills)}")
                with fills[-1].open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, size)
    try:
        yield
    finally:
        for fill in fills:
            fill.unlink(missing_ok=True)
