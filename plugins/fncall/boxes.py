"""A box: the namespaces, mounts and limits of one call, made before the call comes and used once.

`native/box.c` is its PID 1: when that is killed, the kernel ends every process inside, and with the last one
go the mounts, with all files, the network, and what System V IPC left. `gone` tells that it is so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from dsec.bus.errors import DsecError, InfraError, LimitError, NoSuchProgram, SpecError
from dsec.plugins.fncall.channel import Channel, Watched, close_all, memory
from dsec.plugins.fncall.groups import Place
from dsec.plugins.fncall.stem import ANSWER_WITHIN, BOX, GET, PUT, RUN, Answer, Stem, order, parse

INODES: Final = 65_536
_FULL: Final = frozenset({28, 122, 12})  # ENOSPC, EDQUOT, ENOMEM: of the call's own budget
_LONG: Final = 180 * 1024
"""Bytes of arguments and variables of a program."""


class BoxEnded(Exception):
    """PID 1 of a box has ended, and with it the program: whoever ended it knows why."""


class Box:
    """One box in `place`, being made from the moment of construction; `close` ends it."""

    def __init__(self, stem: Stem, place: Place, tmp: int) -> None:
        self.place = place
        self.tmp = tmp
        self.namespaces: list[int] = []
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The status, as of wait(2), of the program in it; or BoxEnded, InfraError, NoSuchProgram."""
        self._answer: asyncio.Future[Answer] | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel: Channel | None = None
        self._process: Watched | None = None
        self._closed = False
        made = stem.told(order(BOX, argc=INODES, value=tmp), place.joining)
        made.add_done_callback(self._made)

    # --- its life

    async def ready(self) -> None:
        """Raises InfraError."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise InfraError("a box for a call could not be made in time") from None

    @property
    def good(self) -> bool:
        """Whether it is there, or still on its way."""
        if self._ready.done() and self._ready.exception() is not None:
            return False
        return self._process is None or not self._process.gone.done()

    def kill(self) -> None:
        """Begin to end everything inside; repeatable.

        Namespaces are let go of first: whoever lets go last takes them down, no work for this process.
        """
        close_all(self.namespaces)
        self.namespaces.clear()
        if self._process is not None:
            self._process.kill()

    async def gone(self, within: float = 10.0) -> None:
        """Everything inside has ended. Raises InfraError when a process cannot be ended in time."""
        if self._process is None:
            return
        try:
            async with asyncio.timeout(within):
                await asyncio.shield(self._process.gone)
        except TimeoutError:
            raise InfraError(f"processes of a call do not end within {within:g} s") from None

    def close(self) -> None:
        """Give back what is held of it; repeatable."""
        self._closed = True
        self.kill()
        if self._channel is not None:
            self._channel.close()
        if not self._ready.done():
            self._fail(InfraError("the box was given up"))

    def _made(self, answer: asyncio.Future[Answer]) -> None:
        if answer.cancelled() or (error := answer.exception()) is not None:
            self._fail(InfraError("no box for a call") if answer.cancelled() else error)
            return
        fds = answer.result().fds
        if len(fds) != 2:
            close_all(fds)
            self._fail(InfraError("a worker answers with nonsense"))
            return
        self._process = Watched(fds[0])
        self._channel = Channel(socket.socket(fileno=fds[1]), self._heard, self._broken)
        if self._closed:
            self.close()

    def _fail(self, error: BaseException | None) -> None:
        if not self._ready.done():
            self._ready.set_exception(error or InfraError("no box for a call"))
            self._ready.exception()  # whoever waits sees it, and perhaps nobody does

    def _broken(self) -> None:
        self._fail(InfraError("a box ended before it was ready"))
        if not self.ended.done():
            self.ended.set_exception(BoxEnded("the box of a call ended by itself"))
            self.ended.exception()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LimitError("the call's own limits ended its box", field="limits"))

    def _heard(self, data: bytes, fds: list[int]) -> None:
        try:
            answer = parse(data, fds)
        except InfraError:
            self.kill()
            return
        if answer.op == BOX:
            self._set_up(answer)
        elif answer.op == RUN and not answer.error:
            close_all(answer.fds)
            if not self.ended.done():
                self.ended.set_result(answer.status)
        elif answer.op == RUN:
            close_all(answer.fds)
            if not self.ended.done():
                self.ended.set_exception(_not_run(answer.error))
                self.ended.exception()
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)
        else:
            close_all(answer.fds)

    def _set_up(self, answer: Answer) -> None:
        if answer.error or self._ready.done():
            close_all(answer.fds)
            why = os.strerror(answer.error)
            self._fail(InfraError(f"a box could not be set up: {answer.text}: {why}"))
            return
        self.namespaces = answer.fds
        self._ready.set_result(None)

    # --- what is done in it

    async def put(self, name: str, content: bytes, mode: int = 0o644) -> None:
        """A file below the working directory. Raises SpecError, LimitError."""
        source = memory("file", content)
        try:
            answer = await self._ask(order(PUT, name, argc=mode), [source])
        finally:
            os.close(source)
        if answer.error in _FULL:
            raise LimitError(f"{name!r} does not fit into the call's limits", field="limits.tmp")
        if answer.error:
            raise SpecError(f"{name!r} cannot be written: {os.strerror(answer.error)}", field="files")

    async def get(self, name: str, longest: int) -> bytes | None:
        """The content of a regular file below the working directory; None when there is no such file.

        Raises LimitError when it has more than `longest` bytes.
        """
        answer = await self._ask(order(GET, name), [])
        try:
            if answer.error or len(answer.fds) != 1:
                return None
            return _bounded(answer.fds[0], name, longest)
        finally:
            close_all(answer.fds)

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        standard: Sequence[int],
        *,
        nofile: int,
        cpu_seconds: int,
    ) -> None:
        """Start a program; `ended` tells its end. Raises SpecError, InfraError."""
        variables = [f"{name}={value}" for name, value in env.items()]
        message = order(
            RUN, *argv, *variables, argc=len(argv), envc=len(variables), nofile=nofile, value=cpu_seconds
        )
        if len(message) > _LONG or len(argv) + len(variables) > 1000:
            raise SpecError("arguments and variables are too many or too long: use files", field="argv")
        self._send(message, standard)

    async def _ask(self, message: bytes, fds: Sequence[int]) -> Answer:
        self._answer = asyncio.get_running_loop().create_future()
        self._send(message, fds)
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await self._answer
        except TimeoutError:
            raise InfraError("a box does not answer") from None
        finally:
            self._answer = None

    def _send(self, message: bytes, fds: Sequence[int]) -> None:
        assert self._channel is not None
        try:
            self._channel.send(message, fds)
        except OSError as error:
            raise InfraError.during("a box does not listen", error) from error


def _not_run(number: int) -> DsecError:
    if number in {7, 12}:  # E2BIG, ENOMEM
        return LimitError(f"the program could not be started: {os.strerror(number)}", field="limits")
    return NoSuchProgram(f"the program could not be executed: {os.strerror(number)}", field="argv")


def _bounded(file: int, name: str, longest: int) -> bytes:
    content = b""
    with contextlib.suppress(BlockingIOError):
        while len(content) <= longest:
            part = os.pread(file, min(1 << 20, longest + 1 - len(content)), len(content))
            if not part:
                return content
            content += part
    raise LimitError(f"{name!r} has more than the {longest} bytes that are left for files", field="outputs")
