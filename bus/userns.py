"""User namespaces made by a process of many threads, in which unshare(2) cannot make one.

A namespace needs a process to be born in. It shares our memory, so nothing is copied, has a stack of its own,
and only sleeps until it is killed. Should we be killed first, it ends by itself `LIFE` later; until then it
holds copies of our descriptors, which is why it may not wait for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

LIFE: Final = 5_000_000
"""Microseconds that the process sleeps; the maps are written in far less."""
_CLONE_VM, _CLONE_NEWUSER, _WALL = 0x100, 0x10000000, 0x40000000
_STACK: Final = 64 * 1024
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def user_namespace(base: int, count: int, acting: AbstractContextManager[None] | None = None) -> int:
    """Descriptor of a new user namespace whose ids 0… are the host's `base`…, `count` of them.

    It is owned by whoever this thread is inside `acting`. Its process sends no SIGCHLD that a child watcher
    could trip over. Raises OSError.
    """
    stack = mmap.mmap(-1, _STACK)
    top = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(stack)) + _STACK)
    sleep = ctypes.cast(_LIBC.usleep, ctypes.c_void_p)
    with acting or contextlib.nullcontext():
        pid = _LIBC.clone(sleep, top, _CLONE_VM | _CLONE_NEWUSER, ctypes.c_void_p(LIFE))
        number = ctypes.get_errno()
    if pid < 0:
        raise OSError(number, f"clone(CLONE_NEWUSER): {os.strerror(number)}")
    try:
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{kind}").write_text(f"0 {base} {count}")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, _WALL)
