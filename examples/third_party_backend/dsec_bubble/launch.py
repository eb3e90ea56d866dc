"""From a root file system to a listening agent: bubblewrap in a user namespace of the sandbox's own ids.

The order matters. Root joins the control group first, so that nothing it starts is outside. In a mount
namespace of its own it binds the root file system where the sandbox's root may look. Then it becomes that
root (nsenter), and bubblewrap, which now has no right outside, makes the other namespaces, drops
capabilities, loads the filter and executes the agent as PID 1. The agent is a sealed copy in memory: no file
of it is inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsec.bus.chronus.build import binary
from dsec.bus.driver import Rootfs
from dsec.bus.errors import InfraError, MissingTool

from . import filter as seccomp

STAGES = (Path("/mnt"), Path("/media"), Path("/srv"))
IDS = 65_536
START_WITHIN = 10.0
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("NET_BIND_SERVICE", "SYS_CHROOT", "AUDIT_WRITE", "SETFCAP"),
)
SCRIPT = """set -e
echo 0 > "$GROUP/cgroup.procs"
ulimit -n "$(ulimit -Hn)"
mount --make-rprivate /
mount --bind "$ROOT" "$STAGE"
exec nsenter --user="/proc/self/fd/$USERNS" --setuid 0 --setgid 0 -- bwrap "$@"
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start; `door` is a listening socket, `group` the agent's control group."""

    rootfs: Rootfs
    door: socket.socket
    group: Path
    nofile: int


async def start(plan: Plan) -> tuple[int, subprocess.Popen[bytes]]:
    """The agent's pid on the host, and bubblewrap, its parent. Raises InfraError with bubblewrap's words."""
    with contextlib.ExitStack() as stack:
        userns = stack.enter_context(_user_namespace(plan.rootfs.uid_base))
        agent = stack.enter_context(_in_memory("init", binary().read_bytes()))
        rules = stack.enter_context(_in_memory("filter", seccomp.program(os.uname().machine)))
        words = stack.enter_context(_in_memory("words", b""))
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        try:
            process = _spawn(plan, userns, agent, rules, words, writing)
        finally:
            os.close(writing)
        try:
            async with asyncio.timeout(START_WITHIN):
                pid = await _child_pid(reading)
                await _executes(pid, agent, process)
        except (TimeoutError, ValueError, OSError) as error:
            process.kill()
            process.wait()
            said = os.pread(words, 2000, 0).decode(errors="replace").strip()
            raise InfraError(f"bubblewrap did not start the sandbox: {said or error}") from error
        return pid, process


def _spawn(plan: Plan, userns: int, agent: int, rules: int, words: int, info: int) -> subprocess.Popen[bytes]:
    stage = next((one for one in STAGES if one.is_dir()), None)
    if stage is None:
        raise MissingTool(f"one of {', '.join(map(str, STAGES))} must exist")
    where = {"GROUP": plan.group, "ROOT": plan.rootfs.path, "STAGE": stage, "USERNS": userns}
    return subprocess.Popen(
        [
            *("unshare", "--mount", "sh", "-c", SCRIPT, "sh"),
            *_bubblewrap(stage, rules, info),
            *("--", f"/proc/self/fd/{agent}", str(plan.nofile)),
        ],
        stdin=plan.door.fileno(),
        stdout=words,
        stderr=words,
        pass_fds=(userns, agent, rules, info),
        env={"PATH": os.environ.get("PATH", os.defpath)} | {name: str(one) for name, one in where.items()},
        start_new_session=True,
    )


def _bubblewrap(stage: Path, rules: int, info: int) -> list[str]:
    unshared = [f"--unshare-{what}" for what in ("pid", "net", "ipc", "uts", "cgroup")]
    kept = [word for name in CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    return [
        *unshared,
        *("--bind", str(stage), "/", "--proc", "/proc", "--dev", "/dev", "--hostname", "sandbox"),
        *("--cap-drop", "ALL", *kept, "--seccomp", str(rules), "--info-fd", str(info)),
        *("--clearenv", "--setenv", "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        *("--chdir", "/", "--as-pid-1"),
    ]


async def _child_pid(reading: int) -> int:
    """bubblewrap's word on it: `{"child-pid": 123, …}`."""
    told = (await asyncio.to_thread(os.read, reading, 4096)).decode()
    return int(told.split('"child-pid":')[1].split(",")[0].strip(" }\n"))


async def _executes(pid: int, agent: int, process: subprocess.Popen[bytes]) -> None:
    """Return when `pid` has got as far as the agent. Raises OSError when it has ended."""
    wanted = os.fstat(agent)
    while True:
        running = Path(f"/proc/{pid}/exe").stat()
        if (running.st_dev, running.st_ino) == (wanted.st_dev, wanted.st_ino):
            return
        if process.poll() is not None:
            raise ChildProcessError(f"it ended with {process.returncode}")
        await asyncio.sleep(0.002)


@contextlib.contextmanager
def _user_namespace(base: int) -> Iterator[int]:
    """A descriptor of a namespace whose ids 0…65535 are `base`… on the host."""
    # should this process be killed meanwhile, the holder must not keep its output open
    nothing, argv = subprocess.DEVNULL, ["unshare", "--user", "sleep", "60"]
    with subprocess.Popen(argv, stdin=nothing, stdout=nothing, stderr=nothing) as holder:
        try:
            directory = Path(f"/proc/{holder.pid}")
            while (directory / "ns/user").readlink() == Path("/proc/self/ns/user").readlink():
                if holder.poll() is not None:
                    raise InfraError("no user namespace can be made: sysctl user.max_user_namespaces")
            for kind in ("uid_map", "gid_map"):
                (directory / kind).write_text(f"0 {base} {IDS}\n")
            descriptor = os.open(directory / "ns/user", os.O_RDONLY)
        finally:
            holder.kill()
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _in_memory(name: str, content: bytes) -> Iterator[int]:
    """A memory file at its beginning, unchangeable unless it is empty."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        if content:
            seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield descriptor
    finally:
        os.close(descriptor)
