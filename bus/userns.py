"""User namespaces made by a process of many threads, in which unshare(2) cannot make one.

A namespace needs a process to be born in. It shares our memory, so nothing is copied, has a stack of its own,
and only sleeps until it is killed. Should we be killed first, it ends by itself `LIFE` later; until then it
holds copies of our descriptors, which is why it may not wait for ever.

A namespace of a sandbox is owned by an id of its own range and not by the host's root: the kernel counts
inotify instances and watches, namespaces and fanotify groups of a user namespace against its *owner* in the
namespace above, too (linux/kernel/ucount.c). Made by root, all sandboxes and root's own services would
share one budget (128 inotify instances by default), and any of them could use it up.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from dsec.bus.threads import finish

LIFE: Final = 5_000_000
"""Microseconds that the process sleeps; the maps are written in far less."""
_CLONE_VM, _CLONE_NEWUSER, _WALL = 0x100, 0x10000000, 0x40000000
_SETRESUID: Final = {"x86_64": 117, "aarch64": 147}
_PR_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 4
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


class UserNamespaces:
    """Makes them in a thread of its own, which changes its user and keeps its capabilities meanwhile."""

    def __init__(self) -> None:
        self._maker: ThreadPoolExecutor | None = None

    @contextlib.asynccontextmanager
    async def owned(self, base: int, count: int, *, owner: int) -> AsyncIterator[str]:
        """Path of a namespace of the host's `owner` whose ids 0… are the host's `base`…, `count` of them.

        Good within the block; whoever joined it keeps it alive. Raises OSError.
        """
        if self._maker is None:
            self._maker = ThreadPoolExecutor(1, "userns", initializer=_keep_capabilities)
        descriptor = await finish(partial(_make, base, count, owner), self._maker, undo=os.close)
        try:
            yield f"/proc/{os.getpid()}/fd/{descriptor}"
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Repeatable; the next use begins anew."""
        if self._maker is not None:
            self._maker.shutdown()
            self._maker = None


def _keep_capabilities() -> None:
    """Holds for this thread, whose children do nothing."""
    _check(_LIBC.prctl(_PR_SET_SECUREBITS, _NO_SETUID_FIXUP, 0, 0, 0), "prctl(PR_SET_SECUREBITS)")


@contextlib.contextmanager
def acting_as(owner: int) -> Iterator[None]:
    """This thread alone is that user, its capabilities as `_keep_capabilities` left them. Raises OSError."""
    _act_as(owner)
    try:
        yield
    finally:
        _act_as(0)


def _make(base: int, count: int, owner: int) -> int:
    return user_namespace(base, count, acting_as(owner))


def _act_as(uid: int) -> None:
    """The effective user of this thread alone; libc's own call changes it in all threads."""
    number = _SETRESUID[os.uname().machine]
    unchanged = ctypes.c_long(-1)
    _check(_LIBC.syscall(ctypes.c_long(number), unchanged, ctypes.c_long(uid), unchanged), "setresuid")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
