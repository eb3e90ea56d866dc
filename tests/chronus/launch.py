"""Run in a process of its own: unshare, then become chronus as PID 1 of new namespaces.

`python -m tests.chronus.launch BINARY LISTENER_FD UID_BASE NPROC [NOFILE]`; UID_BASE 0: no user namespace;
NPROC 0: unlimited. Prints `mapme`, waits for a line (its parent writes the id maps), prints PID 1's host pid.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import sys

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWIPC = 0x20000, 0x10000000, 0x20000000, 0x08000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
PR_SET_PDEATHSIG = 1
SYS_RT_SIGACTION = {"x86_64": 13, "aarch64": 134}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    done = libc.mount(source.encode(), target.encode(), kind.encode(), flags, None)
    check(done, f"mount {target}")


def enter(uid_base: int) -> None:
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC
    check(libc.unshare(flags | (CLONE_NEWUSER if uid_base else 0)), "unshare")
    print("mapme", flush=True)
    sys.stdin.readline()
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def ignore_all_signals() -> None:
    """The worst a launcher can hand on; by the kernel's call, as the C library refuses its own (32, 33)."""
    action = (ctypes.c_ulong * 8)(signal.SIG_IGN)
    for number in set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP}:
        check(
            libc.syscall(SYS_RT_SIGACTION, number, ctypes.byref(action), None, 8), f"ignore signal {number}"
        )


def become_pid_one(binary: int, listener: int, nproc: int, arguments: list[str]) -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    mount("none", "/", "none", MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc")
    mount("tmpfs", "/tmp", "tmpfs")
    os.dup2(listener, 0)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 1)
    if nproc:
        resource.setrlimit(resource.RLIMIT_NPROC, (nproc, nproc))
    ignore_all_signals()
    os.execve(binary, ["chronus", *arguments], {})


def main() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    path, listener, uid_base, nproc, *arguments = sys.argv[1:]
    binary = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    enter(int(uid_base))
    pid = os.fork()
    if pid == 0:
        become_pid_one(binary, int(listener), int(nproc), arguments)
    os.close(int(listener))
    print(pid, flush=True)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
