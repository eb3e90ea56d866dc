"""The seccomp filter as a classic BPF program (seccomp(2)), for x86_64.

Refused are namespaces, mounts, kernel interfaces with a history, and sockets but local, IP and netlink ones.
"""

from __future__ import annotations

import errno
import struct

from dsec.bus.errors import MissingTool

LOAD, JUMP_EQUAL, JUMP_SET, JUMP_GREATER_EQUAL, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Offsets in struct seccomp_data; the low half of an argument comes first."""
X86_64 = 0xC000003E
X32 = 0x40000000
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
SOCKET, CLONE, CLONE3 = 41, 56, 435
NAMESPACES = 0x7E020000
FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""
REFUSED = (
    *(155, 165, 166, 272, 308, 428, 429, 430, 431, 432, 433, 442),  # pivot_root … mount_setattr
    *(103, 164, 169, 170, 171, 227, 305),  # syslog, clocks, reboot, host and domain name
    *(175, 176, 246, 313, 320),  # modules, kexec
    *(248, 249, 250, 298, 304, 321, 323, 425, 426, 427),  # keys, perf, handles, bpf, userfaultfd, io_uring
)

Step = tuple[int, int, int, int]


def program(machine: str) -> bytes:
    """The filter for `machine` (`os.uname().machine`). Raises MissingTool."""
    if machine != "x86_64":
        raise MissingTool(f"the bubble backend has no filter for {machine} yet")
    refuse, unknown = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
    steps: list[Step] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, X86_64),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        *_when(JUMP_GREATER_EQUAL, X32, unknown),
        *_when(JUMP_EQUAL, CLONE3, unknown),
        *(step for number in REFUSED for step in _when(JUMP_EQUAL, number, refuse)),
        (JUMP_EQUAL, 0, 4, CLONE),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (JUMP_SET, 0, 1, NAMESPACES),
        (RETURN, 0, 0, refuse),
        (RETURN, 0, 0, ALLOW),
        (JUMP_EQUAL, 0, 1 + 2 * len(FAMILIES) + 1, SOCKET),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        *(step for family in FAMILIES for step in _when(JUMP_EQUAL, family, ALLOW)),
        (RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _when(test: int, value: int, verdict: int) -> tuple[Step, Step]:
    return (test, 0, 1, value), (RETURN, 0, 0, verdict)
