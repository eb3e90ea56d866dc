"""A real chronus as PID 1 of real namespaces, with its listening socket and cgroup; nothing is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from dsec.bus.chronus.build import binary
from dsec.bus.chronus.cgroup import v2_root
from dsec.bus.chronus.guest import Command, Exec, Exit, Guest
from dsec.bus.driver import Channel

ROOT = Path(__file__).parents[2]
UID_BASE = 700_000
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Inside:
    """`pid` is PID 1's pid on the host."""

    pid: int
    address: str
    cgroup: Path

    def channel(self) -> Channel:
        """A new connection; chronus drops the former."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connected.connect(self.address)
        return Channel(connected, descriptors=True, cgroup=self.cgroup)

    @contextlib.asynccontextmanager
    async def guest(self) -> AsyncIterator[Guest]:
        guest = await Guest.connect(self.channel())
        try:
            yield guest
        finally:
            guest.close()


@contextlib.contextmanager
def inside(*, userns: bool = False, nproc: int = 0, nofile: int | None = None) -> Iterator[Inside]:
    """A sandbox with the host's files, its own /proc and an empty /tmp."""
    cgroup = v2_root() / f"dsec-test-{secrets.token_hex(4)}"
    cgroup.mkdir()
    with tempfile.TemporaryDirectory(prefix="dsec-chronus-") as directory, listening(directory) as listener:
        launcher = _launch(listener, UID_BASE if userns else 0, nproc, nofile)
        try:
            yield Inside(_started(launcher, userns=userns), str(listener.getsockname()), cgroup)
        finally:
            _end(launcher)
            _remove(cgroup)


@contextlib.contextmanager
def listening(directory: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{directory}/socket")
        listener.listen(8)
        yield listener


def _launch(listener: socket.socket, uid_base: int, nproc: int, nofile: int | None) -> subprocess.Popen[str]:
    arguments = [str(binary()), str(listener.fileno()), str(uid_base), str(nproc)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chronus.launch", *arguments, *([str(nofile)] if nofile else [])],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[listener.fileno()],
    )


def _started(launcher: subprocess.Popen[str], *, userns: bool) -> int:
    assert launcher.stdin
    assert launcher.stdout
    assert launcher.stdout.readline() == "mapme\n"
    if userns:
        for name in ("gid_map", "uid_map"):
            Path(f"/proc/{launcher.pid}/{name}").write_text(f"0 {UID_BASE} 65536\n", "ascii")
    launcher.stdin.write("\n")
    launcher.stdin.flush()
    return int(launcher.stdout.readline())


def _end(launcher: subprocess.Popen[str]) -> None:
    """PID 1 dies with its parent, and everything inside with PID 1."""
    launcher.kill()
    launcher.communicate()


def _remove(cgroup: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError):
            for child in cgroup.iterdir():
                if child.is_dir():
                    child.rmdir()
            cgroup.rmdir()
            return
        assert time.monotonic() < deadline, f"{cgroup} stays busy"
        time.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Result:
    exit: Exit
    stdout: bytes
    stderr: bytes


async def run(guest: Guest, *argv: str, timeout: float = 20, **options: object) -> Result:
    """Start, read both streams to their end, wait, release."""
    command = Command(tuple(argv), **options)  # type: ignore[arg-type]  # options of Command as they are
    started = await guest.start(new_id(), command)
    try:
        async with asyncio.timeout(timeout):
            out, err = await asyncio.gather(drain(started.stdout), drain(started.stderr))
            return Result(await started.exited, out, err)
    finally:
        await started.release()


async def sh(guest: Guest, script: str, **options: object) -> str:
    """What a shell script prints; it must succeed."""
    result = await run(guest, "sh", "-c", script, **options)  # type: ignore[arg-type]  # as in run
    assert result.exit.code == 0, result
    return result.stdout.decode().strip()


def new_id() -> str:
    return "e-" + secrets.token_hex(8)


async def drain(descriptor: int) -> bytes:
    """All bytes of a non-blocking pipe until its end."""
    parts = []
    while part := await read_some(descriptor):
        parts.append(part)
    return b"".join(parts)


async def read_some(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, 1 << 18)
        except BlockingIOError:
            await _readable(descriptor)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def exited(started: Exec, timeout: float = 10) -> Exit:
    return await asyncio.wait_for(asyncio.shield(started.exited), timeout)


def alive(pid: int) -> bool:
    """Whether `pid` runs on the host and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
