"""The trusted part of a worker: `native/stem.c`, which makes boxes and the zygote when it is asked.

It dies with this process, and everything inside with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from dsec.bus.errors import InfraError
from dsec.plugins.fncall.channel import Channel, Watched, close_all, memory, pair

ORDER: Final = struct.Struct("=IIIIQ")
ANSWER: Final = struct.Struct("=IIIIQ64s")
ZYGOTE, BOX, PUT, RUN, GET = range(1, 6)
ANSWER_WITHIN: Final = 20.0
"""Seconds for what takes a millisecond, on a machine that is very busy."""


class Answer(NamedTuple):
    """See `native/fn.h`; `fds` are the receiver's."""

    op: int
    error: int
    status: int
    value: int
    text: str
    fds: list[int]


def order(op: int, *strings: str, argc: int = 0, envc: int = 0, nofile: int = 0, value: int = 0) -> bytes:
    """A message to a part inside."""
    body = b"".join(os.fsencode(one) + b"\0" for one in strings)
    return ORDER.pack(op, argc, envc, nofile, value) + body


def parse(data: bytes, fds: list[int]) -> Answer:
    """What a part inside says. Raises InfraError for nonsense, and closes its descriptors then."""
    if len(data) != ANSWER.size:
        close_all(fds)
        raise InfraError("a worker answers with nonsense")
    op, error, status, _, value, text = ANSWER.unpack(data)
    return Answer(op, error, status, value, text.rstrip(b"\0").decode("ascii", "replace"), fds)


@dataclass(slots=True)
class Stem:
    """A running stem; made by `started`."""

    _channel: Channel = field(init=False)
    _process: Watched = field(init=False)
    _asked: deque[asyncio.Future[Answer]] = field(default_factory=deque)
    _pid: int = 0
    _log: int = -1

    @classmethod
    @contextlib.asynccontextmanager
    async def started(
        cls, program: int, rootfs: Path, userns: str, more: Sequence[str]
    ) -> AsyncIterator[Stem]:
        """A worker's PID 1 on `rootfs`, in the user namespace at path `userns`; ended with the block, and all
        inside.

        `program`: descriptor of a sealed copy of the program; `more`: files of cgroups that it joins,
        devices. Raises InfraError.
        """
        ours, theirs = pair()
        stem = cls()
        stem._log = memory("stem")
        try:
            stem._pid = _spawn(program, theirs.fileno(), userns, stem._log, rootfs, more)
        except BaseException:
            ours.close()
            os.close(stem._log)
            raise
        finally:
            theirs.close()
        stem._process = Watched(os.pidfd_open(stem._pid))
        stem._channel = Channel(ours, stem._heard, stem._ended)
        try:
            yield stem
        finally:
            await stem._end()

    @property
    def alive(self) -> bool:
        return not self._process.gone.done()

    @property
    def gone(self) -> asyncio.Future[None]:
        return self._process.gone

    async def ask(self, message: bytes, fds: Sequence[int]) -> Answer:
        """Raises InfraError when it refuses, or does not live."""
        answer = self.told(message, fds)
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await answer
        except TimeoutError:
            raise InfraError("a worker does not answer") from None

    def told(self, message: bytes, fds: Sequence[int]) -> asyncio.Future[Answer]:
        """As `ask`, without waiting."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            self._channel.send(message, fds)
        except OSError as error:
            future.set_exception(InfraError.during(self._last_words() or "a worker has ended", error))
            return future
        self._asked.append(future)
        return future

    def _heard(self, data: bytes, fds: list[int]) -> None:
        waiting = self._asked.popleft() if self._asked else None
        try:
            answer = parse(data, fds)
        except InfraError as error:
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
            return
        if waiting is None or waiting.done():
            close_all(answer.fds)
        elif answer.error:
            close_all(answer.fds)
            why = os.strerror(answer.error)
            waiting.set_exception(InfraError(f"a worker could not do it: {answer.text or answer.op}: {why}"))
        else:
            waiting.set_result(answer)

    def _ended(self) -> None:
        while self._asked:
            waiting = self._asked.popleft()
            if not waiting.done():
                waiting.set_exception(InfraError(f"a worker has ended: {self._last_words()}"))
                waiting.exception()

    def _last_words(self) -> str:
        return os.pread(self._log, 2000, 0).decode(errors="replace").strip()

    async def _end(self) -> None:
        self._process.kill()
        self._channel.close()
        self._ended()
        await asyncio.shield(self._process.gone)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)  # noqa: ASYNC222 - it has ended
        os.close(self._log)


def _spawn(program: int, control: int, userns: str, log: int, rootfs: Path, more: Sequence[str]) -> int:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    namespace = os.open(userns, os.O_RDONLY | os.O_CLOEXEC)
    wanted = {0: null, 1: null, 2: log, 3: control, 4: namespace, 5: program}
    # sources are lifted above the targets, which posix_spawn would otherwise overwrite in passing
    lifted = {target: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for target, fd in wanted.items()}
    actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in lifted.items()]
    argv = ["fncall", "enter", str(rootfs), *more]
    try:
        return os.posix_spawn(f"/proc/self/fd/{lifted[5]}", argv, {}, file_actions=actions, setsigmask=[])
    except OSError as error:
        raise InfraError.during("starting a worker", error) from error
    finally:
        close_all([null, namespace, *lifted.values()])
