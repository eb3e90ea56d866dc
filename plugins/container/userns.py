"""User namespaces of sandboxes, each owned by an id of its own range and not by the host's root.

The kernel counts inotify instances and watches, namespaces and fanotify groups of a user namespace against
its *owner* in the namespace above, too (linux/kernel/ucount.c). Made by root, all sandboxes and root's own
services would share one budget (128 inotify instances by default), and any of them could use it up.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from dsec.bus.userns import user_namespace

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SETRESUID: Final = {"x86_64": 117, "aarch64": 147}
_PR_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 4


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
        making = asyncio.get_running_loop().run_in_executor(self._maker, _make, base, count, owner)
        try:
            descriptor = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_made)
            raise
        try:
            yield f"/proc/{os.getpid()}/fd/{descriptor}"
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Repeatable; the next use begins anew."""
        if self._maker is not None:
            self._maker.shutdown()
            self._maker = None


def _close_made(making: asyncio.Future[int]) -> None:
    if not making.cancelled() and making.exception() is None:
        os.close(making.result())


def _keep_capabilities() -> None:
    """Holds for this thread, whose children do nothing."""
    _check(_LIBC.prctl(_PR_SET_SECUREBITS, _NO_SETUID_FIXUP, 0, 0, 0), "prctl(PR_SET_SECUREBITS)")


@contextlib.contextmanager
def _acting_as(owner: int) -> Iterator[None]:
    _act_as(owner)
    try:
        yield
    finally:
        _act_as(0)


def _make(base: int, count: int, owner: int) -> int:
    return user_namespace(base, count, _acting_as(owner))


def _act_as(uid: int) -> None:
    """The effective user of this thread alone; libc's own call changes it in all threads."""
    number = _SETRESUID[os.uname().machine]
    unchanged = ctypes.c_long(-1)
    _check(_LIBC.syscall(ctypes.c_long(number), unchanged, ctypes.c_long(uid), unchanged), "setresuid")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
