"""What the inside may try against its PID 1: look into it, end it, stop it, starve it."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator

import pytest

from dsec.bus.chronus.guest import Command, Guest
from tests.chronus.inside import Inside, alive, inside, new_id, read_some, run, sh

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
        await sh(guest, "for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; kill -STOP -1 & true")
        assert await sh(guest, "echo alive") == "alive"
        assert alive(prison.pid)


async def test_a_child_stopped_before_execve_stalls_nobody_else(prison: Inside) -> None:
    """A hunter inside stops every new process it sees; other calls are answered all the same."""
    hunt = (
        "import os,signal,time\n"
        "print('hunting',flush=True)\n"
        "seen={int(p) for p in os.listdir('/proc') if p.isdigit()}\n"
        "end=time.monotonic()+2\n"
        "while time.monotonic()<end:\n"
        "  for pid in range(2,400):\n"
        "    if pid not in seen:\n"
        "      try: os.kill(pid,signal.SIGSTOP)\n"
        "      except OSError: pass\n"
    )
    async with prison.guest() as guest:
        await guest.write("/tmp/hunt.py", 0, hunt.encode(), truncate=True)
        hunter = await guest.start(new_id(), Command(("/usr/bin/python3", "/tmp/hunt.py")))
        assert await read_some(hunter.stdout) == b"hunting\n"
        starts = [asyncio.create_task(guest.start(new_id(), Command(("true",)))) for _ in range(20)]
        await asyncio.sleep(0.2)
        for _ in range(10):
            await asyncio.wait_for(guest.ping(), 1)
        await hunter.release()
        await sh(guest, "kill -CONT -1; true")
        for started in await asyncio.wait_for(asyncio.gather(*starts), 10):
            await started.release()


LEASE = """
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open("/tmp/leased", os.O_RDWR | os.O_CREAT, 0o755)
os.write(fd, b"#!/bin/sh\\necho ran\\n")
os.close(fd)
fd = os.open("/tmp/leased", os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print("leased", flush=True)
time.sleep(30)
"""


async def test_a_leased_file_delays_no_call_but_its_own(guest: Guest) -> None:
    holder = await guest.start(new_id(), Command((sys.executable, "-c", LEASE)))
    assert await read_some(holder.stdout) == b"leased\n"
    with pytest.raises(Exception, match="limit of the sandbox"):
        await asyncio.wait_for(guest.write("/tmp/leased", 0, b"x"), 2)
    await asyncio.wait_for(guest.ping(), 1)
    await holder.release()
    await guest.remove("/tmp/leased")


async def test_a_fifo_in_place_of_passwd_or_null_stalls_nobody() -> None:
    with inside() as box:
        async with box.guest() as guest:
            script = "mkdir /tmp/etc && mkfifo /tmp/etc/passwd /tmp/etc/group && mount --bind /tmp/etc /etc"
            await sh(guest, script)
            assert await asyncio.wait_for(sh(guest, "id -u"), 2) == "0"
            await sh(guest, "mkfifo /tmp/null && mount --bind /tmp/null /dev/null")
            assert (await run(guest, "cat", timeout=2)).stdout == b""


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
        except BrokenPipeError:
            break
    await asyncio.sleep(0.02)
    channel.socket.close()
    os.close(read)
    os.close(write)
    async with box.guest() as guest:
        assert await sh(guest, "echo ok") == "ok"
        assert len(os.listdir(f"/proc/{box.pid}/fd")) < 12  # noqa: PTH208 (as procfs has it)
