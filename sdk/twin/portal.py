"""The way from plain threads to one event loop, which has a thread of its own while a client is open.

    portal.open()
    result = portal.call(sandbox.run("pytest -q"))      # any thread, many at once
    portal.close()

A call that is interrupted (KeyboardInterrupt, or whatever a signal handler raises) is cancelled, and only
when it has ended is the interruption raised: what it had begun is undone by then. An asynchronous context
manager lives in one task, from its entry to its exit. Context variables of the caller (`dsec.trace`, spans)
hold for what it calls.

anyio's blocking portal does most of this, but neither waits for what an interruption cancels nor tells a
process that was forked (docs/adr/0028-sync-twin.md).
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from dsec.bus.errors import BrokerDown, InfraError, WrongPlace

T = TypeVar("T")

OUTSIDE: Final = "the client is not connected: use it inside `with dsec.sync.Client()`"
LOOP: Final = "this thread runs an event loop, which dsec.sync would block: await `dsec.Client` here"
FORKED: Final = "this client was opened before the process was forked: open one in the child"


def looping() -> bool:
    """Whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Call(Generic[T]):
    """Work that runs in the portal's loop; its outcome is known when the work has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._outcome: Future[T] = Future()
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Coroutine[Any, Any, T]) -> None:
        """In the loop, and in the caller's context."""
        self._task = asyncio.create_task(self._run(work))
        if self._cancelled:
            self._task.cancel()

    async def _run(self, work: Coroutine[Any, Any, T]) -> None:
        """Nothing is raised here: a KeyboardInterrupt of the caller's block would end the loop."""
        try:
            result = await work
        except asyncio.CancelledError:
            self._outcome.set_exception(BrokerDown("the client was closed during the call"))
        except BaseException as error:  # noqa: BLE001 - whatever it is goes to the caller
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(result)

    def cancel(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def result(self) -> T:
        """The outcome. An interruption cancels the work and is raised when that has ended; the next one
        waits no longer.
        """
        try:
            return self._outcome.result()
        except BaseException:
            self.end()
            raise

    def finished(self) -> T:
        """The outcome; here the first interruption is raised when the work has ended by itself."""
        try:
            return self._outcome.result()
        except BaseException:
            if not self._outcome.done():
                self.result()
            raise

    def end(self) -> None:
        """Cancel the work and wait for its end."""
        if not self._outcome.done():
            self.cancel()
            self._outcome.exception()

    def tie(self, part: Future[Any]) -> None:
        """When the work fails, `part` fails with it, if it is not told yet."""

        def ended(outcome: Future[T]) -> None:
            if not part.done() and (error := outcome.exception()) is not None:
                part.set_exception(error)

        self._outcome.add_done_callback(ended)


class Portal:
    """Made by `dsec.sync.Client`; open within its block. Safe for threads."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # a collected iterator may call from anywhere
        self._pid = os.getpid()

    def open(self) -> None:
        """Start the loop's thread. Raises WrongPlace, InfraError (no descriptor is left)."""
        if looping():
            raise WrongPlace(LOOP)
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, args=(started,), name="dsec.sync", daemon=True)
        self._thread.start()
        self._loop = started.result()
        atexit.register(self.close)

    def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        """The thread. What still runs when it is told to stop is cancelled, and waited for."""
        try:
            with asyncio.Runner() as runner:
                loop = runner.get_loop()
                loop.call_soon(started.set_result, loop)
                loop.run_forever()
        except OSError as error:
            if started.done():
                raise
            started.set_exception(InfraError.during("an event loop", error))

    def close(self) -> None:
        """End the thread with all that runs in it; repeatable, and nothing in a forked process."""
        if self.forked:
            return
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            atexit.unregister(self.close)
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that opened it: the thread has stayed there."""
        return os.getpid() != self._pid

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop to its end. Raises what it raises, BrokerDown when closed, WrongPlace."""
        return self.begin(work).result()

    def begin(self, work: Coroutine[Any, Any, T]) -> Call[T]:
        """Start `work` in the loop. Raises BrokerDown when closed, WrongPlace."""
        try:
            self._check()
            with self._lock:  # what comes in before `close` is begun, and cancelled by it
                if self._loop is None:
                    raise BrokerDown(OUTSIDE)
                return Call(self._loop, work)
        except BaseException:
            work.close()
            raise

    def _check(self) -> None:
        """Raises WrongPlace."""
        if self._loop is not None and self.forked:
            raise WrongPlace(FORKED)
        if looping():
            raise WrongPlace(LOOP)

    def iterate(self, source: AsyncIterator[T]) -> Generator[T, None, None]:
        """What an asynchronous iterator gives; closed with it. Raises as `call`."""
        while True:
            try:
                piece = self.call(_next(source))
            except StopAsyncIteration:
                return
            try:
                yield piece
            except GeneratorExit:
                self._close(source)
                raise

    def _close(self, source: AsyncIterator[Any]) -> None:
        """At once, if we may wait here; otherwise the loop closes it when it is collected."""
        close = getattr(source, "aclose", None)
        if close is not None and self._loop is not None and not self.forked and not looping():
            self.call(close())


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


class Block(Generic[T]):
    """An asynchronous context manager that is entered and left from a plain thread, within one task."""

    def __init__(self, portal: Portal, manager: AbstractAsyncContextManager[T, bool | None]) -> None:
        self._portal = portal
        self._manager = manager
        self._entered: Future[T] = Future()
        self._left: Future[BaseException | None] = Future()
        self._call: Call[bool] | None = None

    async def _hold(self) -> bool:
        """Whether the manager has suppressed the block's error."""
        self._entered.set_result(await self._manager.__aenter__())
        try:
            error = await asyncio.wrap_future(self._left)
        except asyncio.CancelledError as cancelled:
            await self._manager.__aexit__(type(cancelled), cancelled, cancelled.__traceback__)
            raise
        if error is None:
            await self._manager.__aexit__(None, None, None)
            return False
        return bool(await self._manager.__aexit__(type(error), error, error.__traceback__))

    def __enter__(self) -> T:
        self._call = self._portal.begin(self._hold())
        self._call.tie(self._entered)
        try:
            return self._entered.result()
        except BaseException:  # also one that came when it was entered just now
            self._call.end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._call is None or self._portal.forked:
            return False
        self._left.set_result(error)
        try:
            return self._call.finished()
        except BaseException as raised:
            if raised is error:
                return False
            raise
