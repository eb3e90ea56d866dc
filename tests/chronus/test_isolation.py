"""What the inside may try against its PID 1: look into it, end it, stop it, starve it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator

import pytest

from dsec.bus.chronus import guest as guest_module
from dsec.bus.chronus.guest import Command, Guest
from dsec.bus.chronus.protocol import Op
from dsec.bus.errors import AgentCrippled, LimitError
from tests.chronus.inside import Inside, alive, drain, inside, new_id, read_some, run, sh

pytestmark = pytest.mark.node


@pytest.fixture(scope="module", params=[False, True], ids=["host-root", "user-namespace"])
async def prison(request: pytest.FixtureRequest) -> AsyncIterator[Inside]:
    with inside(userns=request.param) as made:
        yield made


ATTEMPTS = [
    "ls /proc/PID/fd/*",
    "readlink /proc/PID/fd/0",
    "cat /proc/PID/environ",
    "cat /proc/PID/maps",
    "readlink /proc/PID/exe",
    "ls /proc/PID/root/",
    "ls /proc/PID/map_files/",
    "cat /proc/PID/auxv",
    "cat /proc/PID/syscall",
    "cat /proc/PID/personality",
]


@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_root_inside_cannot_look_into_pid_1_as_into_others(prison: Inside, attempt: str) -> None:
    other = attempt.replace("PID", "$other")
    script = f"{attempt.replace('PID', '1')}; A=1 sleep 9 >/dev/null 2>&1 & other=$!"
    script += f"; sleep 0.05; echo MARK; {other}; kill $other"
    async with prison.guest() as guest:
        result = await run(guest, "setpriv", "--bounding-set=-sys_admin", "sh", "-c", script)
        of_one, of_other = result.stdout.split(b"MARK\n")
        assert (of_one, of_other != b"") == (b"", True), result


ATTACH = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE, PTRACE_ATTACH, PIDFD_OPEN, PIDFD_GETFD, VM_READV = 0x4206, 16, 434, 438, 310
def refused(result):
    assert result < 0 and ctypes.get_errno() in (errno.EPERM, errno.EACCES), (result, ctypes.get_errno())
refused(libc.ptrace(PTRACE_ATTACH, 1, None, None))
refused(libc.ptrace(PTRACE_SEIZE, 1, None, None))
pidfd = libc.syscall(PIDFD_OPEN, 1, 0)
assert pidfd >= 0
for fd in range(8):
    refused(libc.syscall(PIDFD_GETFD, pidfd, fd, 0))
print("all refused")
"""


async def test_root_inside_cannot_trace_pid_1_or_take_its_descriptors(guest: Guest) -> None:
    assert await sh(guest, f"{sys.executable} -c '{ATTACH}'") == "all refused"


async def test_no_signal_from_inside_reaches_pid_1(prison: Inside) -> None:
    async with prison.guest() as guest:
        await sh(guest, "for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; true")
        assert await sh(guest, "echo alive") == "alive"
        assert alive(prison.pid)


LEASE = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
with open("/tmp/leased", "w") as made:
    made.write("#!/bin/sh\\necho ran\\n")
os.chmod("/tmp/leased", 0o755)
fd = os.open("/tmp/leased", os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
time.sleep(30)
"""


async def test_an_execve_that_is_made_to_wait_and_a_leased_file_stall_nobody_else(guest: Guest) -> None:
    """Whoever opens a leased file waits, up to 45 s, for the holder to give the lease up; execve does."""
    holder = await guest.start(new_id(), Command((sys.executable, "-c", LEASE)))
    assert await read_some(holder.stdout) == b"leased\n"
    waiting = asyncio.create_task(guest.start(new_id(), Command(("/tmp/leased",))))
    for attempt in (guest.read("/tmp/leased", 0, 10), guest.write("/tmp/leased", 0, b"x")):
        with pytest.raises(LimitError):
            await asyncio.wait_for(attempt, 10)
    assert await asyncio.wait_for(sh(guest, "echo others run"), 5) == "others run"
    assert not waiting.done()
    await holder.release()
    started = await asyncio.wait_for(waiting, 5)
    assert await drain(started.stdout) == b"ran\n"
    await started.release()


async def test_a_fifo_in_place_of_passwd_or_null_stalls_nobody() -> None:
    with inside() as box:
        async with box.guest() as guest:
            script = "mkdir /tmp/etc && mkfifo /tmp/etc/passwd /tmp/etc/group && mount --bind /tmp/etc /etc"
            await sh(guest, script)
            assert await asyncio.wait_for(sh(guest, "id -u"), 10) == "0"
            await sh(guest, "mkfifo /tmp/null && mount --bind /tmp/null /dev/null")
            assert (await run(guest, "cat", timeout=10)).stdout == b""


@pytest.mark.parametrize(
    "datagram",
    [
        b"x",
        b"\0" * 12,
        b"\xff" * 5000,
        struct.pack("<BBHII", 2, 2, 0, 1, 0),
        struct.pack("<BBHII", 2, 2, 1, 1, 0) + struct.pack("<II", 2**32 - 1, 2**32 - 1) + b"a\0b\0c\0",
        struct.pack("<BBHII", 2, 2, 0, 1, 0) + struct.pack("<II", 3, 3) + b"a\0b\0c\0",
        struct.pack("<BBHII", 2, 11, 0, 1, 0) + b"\0" * 11,
        struct.pack("<BBHII", 2, 11, 0, 1, 0) + struct.pack("<QI", 2**64 - 1, 2**32 - 1) + b"/etc/passwd\0",
        struct.pack("<BBHII", 2, 9, 0, 1, 0) + b"no end",
        struct.pack("<BBHII", 2, 255, 0, 1, 0),
        struct.pack("<BBHII", 2, 9, 0, 1, 0) + b"a" * 150_000,
    ],
)
async def test_no_datagram_ends_the_agent(box: Inside, datagram: bytes) -> None:
    channel = box.channel()
    channel.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    read, write = os.pipe()
    for descriptors in ([], [read], [read, write] * 20):
        try:
            socket.send_fds(channel.socket, [datagram], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            break
    await asyncio.sleep(0.02)
    channel.socket.close()
    os.close(read)
    os.close(write)
    async with box.guest() as guest:
        assert await sh(guest, "echo ok") == "ok"
        assert len(os.listdir(f"/proc/{box.pid}/fd")) < 12  # noqa: PTH208 (as procfs has it)


STOP_ALL = """
import os, signal, time
while True:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try:
                os.kill(int(name), signal.SIGSTOP)
            except OSError:
                pass
"""


async def test_who_stops_every_new_process_stops_neither_the_agent_nor_its_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(guest_module.CHILD_PATIENCE, Op.START, 0.5)
    with inside(userns=True) as prison:
        async with prison.guest() as guest:
            stopper = await guest.start(new_id(), Command(("python3", "-c", STOP_ALL)))
            for _ in range(8):
                with contextlib.suppress(AgentCrippled):
                    async with asyncio.timeout(5):
                        stopped = await guest.start(new_id(), Command(("true",)))
                    await stopped.release()
                await guest.ping()
            await stopper.release()
            assert (await run(guest, "true")).exit.code == 0
