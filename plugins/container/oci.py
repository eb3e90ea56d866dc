"""The OCI runtime configuration of a sandbox: what it may see and do. Pure.

Format: https://github.com/opencontainers/runtime-spec/blob/main/config.md
"""

from __future__ import annotations

import resource
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

IDS: Final = 65_536
"""Host ids per sandbox, from its `uid_base` on."""

AGENT: Final = "/proc/self/fd/3"
"""The agent is executed from a passed descriptor, so that no file of it is inside."""

_KEPT: Final = """
CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE SYS_CHROOT AUDIT_WRITE SETFCAP
"""
CAPABILITIES: Final = [f"CAP_{name}" for name in _KEPT.split()]
"""Docker's default set without MKNOD and NET_RAW; they hold in the sandbox's own user namespace only."""

MASKED: Final = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/config.gz",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/kernel",
]
READONLY: Final = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"]
MOUNT_POINTS: Final = ("proc", "dev", "sys")
"""Directories of an image onto which the engine mounts; none may be a symbolic link."""

BPF: Final = "run.oci.seccomp_bpf_data"
"""crun's annotation for a compiled filter, in base64."""

SHM_BYTES: Final = 64 << 20
NAMESPACES: Final = ("mount", "pid", "ipc", "uts", "network", "cgroup")


def render(
    rootfs: Path,
    uid_base: int,
    userns: str,
    cgroup: str,
    nofile: int,
    oom_score_adj: int,
    seccomp: Mapping[str, Any] | bytes,
) -> bytes:
    """config.json of one sandbox.

    `userns`: path of a user namespace with these ids;
    `cgroup`: where an engine that manages cgroups puts PID 1; `nofile`: descriptors per process; `seccomp`:
    the `linux.seccomp` object, or the BPF program that crun made of it (1.2 CPU ms less per start).
    """
    mapping = [{"containerID": 0, "hostID": uid_base, "size": IDS}]
    return orjson.dumps(
        {
            "ociVersion": "1.0.2",
            "hostname": "sandbox",
            "root": {"path": str(rootfs)},
            "process": _process(nofile, oom_score_adj),
            "mounts": _MOUNTS,
            "annotations": {BPF: b64encode(seccomp).decode()} if isinstance(seccomp, bytes) else {},
            "linux": {
                "cgroupsPath": cgroup,
                "namespaces": [{"type": "user", "path": userns}, *({"type": name} for name in NAMESPACES)],
                "uidMappings": mapping,
                "gidMappings": mapping,
                "maskedPaths": MASKED,
                "readonlyPaths": READONLY,
                **({} if isinstance(seccomp, bytes) else {"seccomp": seccomp}),
            },
        }
    )


_AGENTS_FILES: Final = min(1 << 20, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
"""Descriptors of chronus, which keeps some for each command; it sets the sandbox's own limit for commands."""


def _process(nofile: int, oom_score_adj: int) -> dict[str, Any]:
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0, "umask": 0o022},
        "args": [AGENT, str(nofile)],
        # without HOME crun looks for it in the image's /etc/passwd, and waits when that is a pipe
        "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"],
        "cwd": "/",
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), CAPABILITIES),
        "rlimits": [
            {"type": "RLIMIT_NOFILE", "soft": _AGENTS_FILES, "hard": _AGENTS_FILES},
            {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
        ],
        # sudo and su inside work: their root is the user namespace's, which is nobody on the host
        "noNewPrivileges": False,
        "oomScoreAdj": oom_score_adj,
    }


def _mount(kind: str, where: str, *options: str) -> dict[str, Any]:
    return {"type": kind, "source": kind, "destination": where, "options": ["nosuid", "noexec", *options]}


_MOUNTS: Final = [
    _mount("proc", "/proc", "nodev"),
    _mount("tmpfs", "/dev", "mode=755", "size=64k"),
    _mount("devpts", "/dev/pts", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
    _mount("tmpfs", "/dev/shm", "nodev", "mode=1777", f"size={SHM_BYTES}"),  # noqa: S108 - a mount point
    _mount("mqueue", "/dev/mqueue", "nodev"),
    _mount("sysfs", "/sys", "nodev", "ro"),
]
