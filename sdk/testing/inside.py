"""Functions that `probes` sends into calls. Each stands alone: only its own text travels."""

# ruff: noqa: PLC0415, PTH110, PTH116, PTH118, PTH123, PTH208 - imports belong to the text that travels, which is kept short

from __future__ import annotations

from typing import Any


def processes() -> dict[str, Any]:
    import ctypes
    import errno
    import os

    libc = ctypes.CDLL(None, use_errno=True)

    def attempt(action: Any) -> str:
        try:
            action()
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return ""

    def ptrace() -> None:
        if libc.ptrace(16, 1, 0, 0) < 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    def peek() -> None:
        if libc.process_vm_readv(1, None, 0, None, 0, 0) < 0:
            raise OSError(ctypes.get_errno(), "process_vm_readv")

    return {
        "pids": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "parent": os.getppid(),
        "kill": attempt(lambda: os.kill(1, 9)),
        "mem": attempt(lambda: open("/proc/1/mem", "r+b")),
        "environ": attempt(lambda: open("/proc/1/environ", "rb").read()),
        "ptrace": attempt(ptrace),
        "peek": attempt(peek),
    }


def sleeps(seconds: float) -> float:
    import time

    time.sleep(seconds)
    return seconds


def signals_everybody() -> list[str]:
    import os
    import signal

    failed = []
    for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(-1, number)
        except OSError as error:
            failed.append(str(error))
    return failed


def rights() -> dict[str, Any]:
    import os

    with open("/proc/self/status") as file:
        lines = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    names = ("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp")
    return {**{name: lines[name] for name in names}, "root": 0 in {os.getuid(), os.geteuid(), os.getgid()}}


def system_calls() -> dict[str, str]:
    import ctypes
    import errno
    import platform
    import socket

    libc = ctypes.CDLL(None, use_errno=True)
    x86 = platform.machine() == "x86_64"
    numbers = {  # of x86-64 and of 64-bit ARM
        "bpf": (321, 280),
        "perf_event_open": (298, 241),
        "userfaultfd": (323, 282),
        "io_uring_setup": (425, 425),
        "keyctl": (250, 219),
        "init_module": (175, 105),
        "clock_settime": (227, 112),
        "open_by_handle_at": (304, 265),
        "io_setup": (206, 0),
        "clone3": (435, 435),
        "open_tree": (428, 428),
        "fsopen": (430, 430),
    }
    found = {}
    for name, both in numbers.items():
        result = libc.syscall(ctypes.c_long(both[0 if x86 else 1]), -1, 0, 0, 0, 0)
        found[name] = "" if result >= 0 else errno.errorcode[ctypes.get_errno()]
    for name in ("user", "mnt", "net", "pid", "ipc", "uts"):
        with open(f"/proc/self/ns/{name}", "rb") as namespace:
            result = libc.setns(namespace.fileno(), 0)
        found[f"setns {name}"] = "" if result >= 0 else "EPERM"
    for flag in (0x10000000, 0x20000, 0x40000000, 0x80):
        result = libc.unshare(flag)
        found[f"unshare {flag:x}"] = "" if result >= 0 else errno.errorcode[ctypes.get_errno()]
    result = libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)
    found["mount"] = "" if result >= 0 else errno.errorcode[ctypes.get_errno()]
    for family in (17, 16, 40, 38):  # AF_PACKET, AF_NETLINK, AF_VSOCK, AF_ALG
        try:
            socket.socket(family, socket.SOCK_RAW).close()
            found[f"family {family}"] = ""
        except OSError as error:
            found[f"family {family}"] = errno.errorcode[error.errno or 0]
    return found


def leaves_files(mark: str) -> dict[str, str]:
    import errno
    import os

    for directory in ("/tmp", "/dev/shm", "."):
        with open(os.path.join(directory, mark), "w") as file:
            file.write(mark)
    found = {}
    for directory in ("/etc", "/usr", "/"):
        try:
            open(os.path.join(directory, mark), "w").close()
            found[directory] = ""
        except OSError as error:
            found[directory] = errno.errorcode[error.errno or 0]
    return found


def finds_files(mark: str) -> list[str]:
    import os

    return [one for one in ("/tmp", "/dev/shm", ".") if os.path.exists(os.path.join(one, mark))]


def host(paths: list[str]) -> dict[str, Any]:
    import errno
    import os
    import stat

    known = {"PATH", "HOME", "TMPDIR", "LANG", "USER", "LC_CTYPE"}
    devices = [os.stat(os.path.join("/dev", name)) for name in os.listdir("/dev") if name != "fd"]
    try:
        os.mknod("/tmp/device", stat.S_IFCHR | 0o600, os.makedev(1, 1))
        made = ""
    except OSError as error:
        made = errno.errorcode[error.errno or 0]
    return {
        "there": [path for path in paths if os.path.exists(path)],
        "name": os.uname().nodename,
        "foreign": sorted(set(os.environ) - known),
        "disks": [one.st_rdev for one in devices if stat.S_ISBLK(one.st_mode)],
        "mknod": made,
    }


def kernel() -> list[str]:
    possible = []
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/oom_score_adj"):
        try:
            with open(path, "r+b", buffering=0) as file:
                file.write(b"-1000" if "oom" in path else b"")
            possible.append(f"write {path}")
        except OSError:
            pass
    for path in ("/proc/kcore", "/proc/kpagecount", "/proc/kmsg", "/proc/timer_list", "/dev/kmsg"):
        try:
            with open(path, "rb", buffering=0) as file:
                file.read(8)
            possible.append(f"read {path}")
        except OSError:
            pass
    return possible


def network(port: int) -> dict[str, Any]:
    import errno
    import socket

    def connect(address: tuple[str, int]) -> str:
        with socket.socket() as one:
            one.settimeout(2)
            try:
                one.connect(address)
            except OSError as error:
                return errno.errorcode.get(error.errno or 0, str(error))
        return ""

    try:
        socket.socket(16, socket.SOCK_RAW).close()
        netlink = ""
    except OSError as error:
        netlink = errno.errorcode[error.errno or 0]
    with socket.create_server(("127.0.0.1", 0)) as own:
        reached = connect(own.getsockname())
    with open("/proc/net/dev") as file:
        devices = [line.split(":")[0].strip() for line in file if ":" in line]
    away = connect(("192.0.2.1", 80))  # of documentation, RFC 5737
    return {
        "devices": devices,
        "host": connect(("127.0.0.1", port)),
        "away": away,
        "own": reached,
        "netlink": netlink,
    }


def listens_abstract(name: str, seconds: float) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX) as one:
        one.bind("\0" + name)
        one.listen()
        one.settimeout(seconds)
        try:
            one.accept()
        except TimeoutError:
            return False
    return True


def connects_abstract(name: str) -> str:
    import errno
    import socket

    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect("\0" + name)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
    return ""


def makes_shared_memory(key: int) -> bool:
    import ctypes

    return bool(ctypes.CDLL(None).shmget(key, 4096, 0o1666) >= 0)


def finds_shared_memory(key: int) -> bool:
    import ctypes

    return bool(ctypes.CDLL(None).shmget(key, 4096, 0o666) >= 0)


def cgroups() -> list[str]:
    import os

    with open("/proc/self/cgroup") as file:
        shown = sorted({line.rstrip("\n").split(":", 2)[2] for line in file})
    with open("/proc/self/mountinfo") as file:
        mounted = [line.split()[4] for line in file if " - cgroup" in line]
    return shown + mounted + (["/sys/fs/cgroup"] if os.path.exists("/sys/fs/cgroup/cgroup.procs") else [])


def descriptors() -> int:
    import os

    return len(os.listdir("/proc/self/fd")) - 1  # the list's own


def holds(secret: str) -> int:
    kept = [secret * 10 for _ in range(1000)]
    return len(kept)


def searches_memory(first: str, second: str) -> int:
    one, other, found = first.encode(), second.encode(), 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in list(maps):
            span, rights, *_ = line.split()
            if "r" not in rights or "[v" in line:
                continue
            begin, end = (int(part, 16) for part in span.split("-"))
            memory.seek(begin)
            try:
                data = memory.read(end - begin)
            except OSError:
                continue
            at = data.find(one)
            while at >= 0:
                found += data[at + len(one) : at + len(one) + len(other)] == other
                at = data.find(one, at + 1)
    return found


def leaves_daemon(mark: str) -> int:
    import os
    import signal
    import time

    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", mark])
        os._exit(0)
    os.wait()
    time.sleep(0.05)
    return 1


def watches() -> int:
    import ctypes
    import time

    libc, made = ctypes.CDLL(None), 0
    while made < 4000 and libc.inotify_init1(0) >= 0:
        made += 1
    time.sleep(0.3)
    return made


def takes_memory(size: int) -> int:
    return len(bytearray(size))


def forks(most: int) -> int:
    import os
    import time

    for number in range(most):
        try:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        except OSError:
            return number
    return most


def fills(most: int) -> int:
    written = 0
    with open("/tmp/filled", "wb", buffering=0) as file:
        while written < most:
            try:
                written += file.write(bytes(1 << 20))
            except OSError:
                break
    return written


def spins() -> None:
    import os
    import signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_IGN)
    os.fork()
    while True:
        pass
