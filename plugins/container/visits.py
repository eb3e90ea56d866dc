"""Short visits to the namespaces of a sandbox, by a thread of its own that always comes home (setns(2)).

What is made there stays of that namespace: a socket made in a sandbox's network namespace reaches only what
listens inside, whoever holds it. The process is named by its pidfd: a pid that was given anew is not entered.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from dsec.bus.threads import finish

CLONE_FS, CLONE_NEWNS, CLONE_NEWNET = 0x200, 0x20000, 0x4000_0000
_NAMES: Final = {CLONE_NEWNS: "mnt", CLONE_NEWNET: "net"}
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


class Visitor:
    """The thread; `close` ends it, and the next visit begins another. Lives on one event loop."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._home: dict[int, int] = {}

    async def visit(
        self,
        pidfd: int,
        namespace: int,
        work: Callable[[], T],
        *,
        undo: Callable[[T], object] = lambda _: None,
    ) -> T:
        """What the blocking `work` returns, done in the `namespace` (CLONE_NEW…) of the process `pidfd`.

        A cancelled caller goes on only when the visit is over, and what it made went to `undo`.
        Raises ProcessLookupError when it has ended, OSError.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "visits", initializer=self._settle)
        held = os.dup(pidfd)
        try:
            return await finish(partial(self._visit, held, namespace, work), self._thread, undo=undo)
        finally:
            os.close(held)

    def _settle(self) -> None:
        """Without a working directory of its own a thread cannot change its mount namespace."""
        _check(_LIBC.unshare(CLONE_FS), "unshare")
        for namespace, name in _NAMES.items():
            self._home[namespace] = os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def _visit(self, pidfd: int, namespace: int, work: Callable[[], T]) -> T:
        _check(_LIBC.setns(pidfd, namespace), "setns")
        try:
            return work()
        finally:
            _check(_LIBC.setns(self._home[namespace], namespace), "setns")

    def close(self) -> None:
        """Repeatable."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        while self._home:
            os.close(self._home.popitem()[1])


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
