"""The reader of one exec's output: live, replayed and recovered output through the same fold.

Rule (docs: the exec log): a short exec is its first frame and costs nothing more. Otherwise the reader
subscribes to the exec's subject, then grants credit. Frames at the expected offset are taken, smaller ones
are duplicates, a larger one is a gap that is fetched from the log. Silence is answered by a look into the
log, too: it finds what a lost connection or a restarted node kept from us. Memory is bounded by the credit
window.

One task per streaming exec (`_pump`) does what takes requests; it ends when the exec has ended, the reader is
closed, or its client is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Final

import orjson

from dsec.bus import subjects
from dsec.bus.errors import BrokerDown, DsecError, GoneError, InfraError, NoSuchExec, SpecError
from dsec.bus.frames import Fold, Frame, Kind, unpack, unpack_data, unpack_frames
from dsec.bus.transport import Received, Subscription
from dsec.sdk.credit import Credit
from dsec.sdk.link import Link, pauses

FETCH_BYTES: Final = 512 * 1024
FETCH_LEAST: Final = 64 * 1024
PATIENCE: Final = 100.0
"""Seconds that a node may stay away: longer than the 75 s after which its sandboxes are declared failed."""
GRACE: Final = 5.0
"""Seconds after which output that is not in the log will not come any more."""
ATTEMPT: Final = 2.0
_QUIET: Final = (0.2, 10.0)  # seconds of silence before a look into the log: first, and at most
_SLOW: Final = 1.0  # a grant that took longer met a fault: look what was missed

Piece = tuple[Kind, bytes]


class Reader:
    """Output of one exec from byte `offset` on; `first` is the frame that answered its start, if any."""

    def __init__(
        self,
        link: Link,
        sandbox: str,
        exec_id: str,
        *,
        first: Frame | None = None,
        offset: int = 0,
        credit: Credit | None = None,
    ) -> None:
        self._link = link
        self._sandbox = sandbox
        self._exec = exec_id
        self._credit = credit or Credit()
        self.fold = Fold(expected=offset)
        self.taken = offset
        self._queue: deque[Piece] = deque()
        self._early: dict[int, Frame] = {}
        self._behind = first is None or self._feed(first) is None
        self._ready = asyncio.Event()
        self._wake = asyncio.Event()
        self._subscription: Subscription | None = None
        self._pumping: asyncio.Task[None] | None = None
        self._failure: DsecError | None = None
        self._gone: GoneError | None = None
        self._stuck: float | None = None
        self._cursor = 0
        self._heard = 0.0
        self._quiet = _QUIET[0]

    async def next(self) -> Piece | None:
        """The next output, waiting for it; None when the exec has ended and all was taken.

        Raises NoSuchExec, NoSuchSandbox, NodeLost, BrokerDown, DeadlineExceeded.
        """
        if self._pumping is None and self.fold.end is None and self._failure is None:
            self._open()
        while not self._queue:
            if self.fold.end is not None:
                await self.close()
                return None
            if self._failure is not None:
                await self.close()
                raise self._failure
            self._ready.clear()
            await self._ready.wait()
        kind, data = self._queue.popleft()
        self.taken += len(data)
        if self._pumping is not None and (self._behind or self._credit.owed(self.taken)):
            self._wake.set()
        return kind, data

    async def close(self) -> None:
        """Stop reading; repeatable. The exec goes on, and its output goes to the log."""
        self._behind = True  # should the owner read on later
        pumping, self._pumping = self._pumping, None
        if pumping is not None:
            pumping.cancel()
            await asyncio.gather(pumping, return_exceptions=True)
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with contextlib.suppress(InfraError):
                await subscription.unsubscribe()
        self._link.readers.discard(self)

    def _open(self) -> None:
        self._heard = asyncio.get_running_loop().time()
        self._link.readers.add(self)
        self._pumping = asyncio.create_task(self._pump(), name=f"reader of {self._exec}")

    # -- frames in: called from the subscription and from fetches

    def _receive(self, message: Received) -> None:
        if self._pumping is None:  # closed, or a subscription that was thought lost
            return
        self._heard = asyncio.get_running_loop().time()
        try:
            self._take(unpack(message.data))
        except DsecError as error:
            self._failure = error
        self._ready.set()

    def _take(self, frame: Frame) -> None:
        """Fold a live frame; one that is early is kept, one that is over the window is left to a fetch."""
        if not self._credit.fits(self.taken, frame.offset + frame.output):
            self._behind = True
        elif self._feed(frame) is None:
            self._early[frame.sequence] = frame
            self._behind = True
            self._wake.set()

    def _feed(self, frame: Frame) -> bool | None:
        """Queue what is new in `frame`: whether there was any; None for a gap."""
        pieces = self.fold.feed(frame)
        if pieces is None:
            return None
        if frame.kind is Kind.EXIT and self.fold.end is None:
            raise SpecError(f"the exec has {frame.offset} bytes of output, no more", field="offset")
        self._queue.extend(pieces)
        return bool(pieces)

    def _feed_early(self) -> None:
        for sequence in sorted(self._early):
            frame = self._early[sequence]
            if self._feed(frame) is None:
                self._behind = True
                return
            del self._early[sequence]

    # -- requests out: one task

    async def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._subscribe()
            while self.fold.end is None and self._pumping is not None:  # wait_for loses cancellations in 3.11
                now = loop.time()
                if self._behind and self._credit.room(self.taken, self.fold.expected) >= self._least:
                    await self._catch_up()
                elif self._gone is None and self._credit.due_in(self.taken, now) <= 0:
                    await self._grant()
                else:
                    await self._doze(now)
        except DsecError as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _subscribe(self) -> None:
        subject = subjects.exec_stream(self._link.project, self._sandbox, self._exec)
        until = asyncio.get_running_loop().time() + PATIENCE
        for pause in pauses():
            try:
                async with asyncio.timeout(ATTEMPT):
                    self._subscription = await self._link.bus.subscribe(subject, self._receive)
                return
            except (BrokerDown, TimeoutError) as error:
                if asyncio.get_running_loop().time() >= until:
                    raise BrokerDown(f"{subject} was not subscribed within {PATIENCE:g} s") from error
                self._behind = True
                await asyncio.sleep(pause)

    @property
    def _least(self) -> int:
        return min(FETCH_LEAST, self._credit.window // 2)

    async def _doze(self, now: float) -> None:
        """Until there is something to do; a silence that lasted is a reason to look into the log.

        When we are behind already, it is the consumer whom we wait for.
        """
        waits = [] if self._behind else [max(0.0, self._heard + self._quiet - now)]
        if self._gone is None:
            waits.append(self._credit.due_in(self.taken, now))
        self._wake.clear()
        try:
            async with asyncio.timeout(min(waits, default=None)):
                await self._wake.wait()
        except TimeoutError:
            silence = asyncio.get_running_loop().time() - self._heard
            self._behind = self._behind or silence >= self._quiet

    async def _grant(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        body = {"offset": self._credit.grant(self.taken, began), "lease": self._credit.lease}
        subject = self._link.subject("exec", "credit", self._sandbox, self._exec)
        try:
            await self._link.ask(subject, body, patience=PATIENCE, attempt=ATTEMPT)
        except GoneError as error:
            self._gone = error
            self._behind = True
        if loop.time() - began > _SLOW:
            self._behind = True

    async def _catch_up(self) -> None:
        """One page of the log; slower and slower while there is nothing new in it."""
        loop = asyncio.get_running_loop()
        self._behind = False
        found = await self._fetch()
        self._feed_early()
        self._ready.set()
        self._heard = loop.time()
        if found:
            self._quiet, self._stuck = _QUIET[0], None
            return
        self._quiet = min(2 * self._quiet, _QUIET[1])
        if self.fold.end is None and (self._behind or self._gone is not None):
            await self._await_record(loop.time())

    async def _await_record(self, now: float) -> None:
        """What is missing is not in the log: it will be soon, or has expired, or never was there.

        A frame that came early has elders that the node appends again until they are stored; an exec that
        its node has forgotten was stored before.
        """
        self._stuck = now if self._stuck is None else self._stuck
        if now - self._stuck >= GRACE:
            raise self._gone or NoSuchExec(f"output of {self._exec} from {self.fold.expected} on has expired")
        self._behind = True
        await asyncio.sleep(self._quiet / 10)

    async def _fetch(self) -> bool:
        """Feed a page of stored frames; whether it held anything new."""
        room = self._credit.room(self.taken, self.fold.expected)
        body = {
            "sandbox": self._sandbox,
            "exec": self._exec,
            "offset": self.fold.expected,
            "cursor": self._cursor,
            "max_bytes": max(1024, min(FETCH_BYTES, room)),
        }
        try:
            answer = await self._link.ask(self._link.subject("log", "fetch"), body)
        except GoneError:  # nothing stored yet, or no more: the node's word decides
            self._cursor = 0
            return False
        head, data = unpack_data(answer)
        page = orjson.loads(head)
        news = [self._feed(unpack(raw)) for raw in unpack_frames(data)]
        if None in news:
            self._behind = True
        self._cursor = page["cursor"] if page["more"] else 0
        self._behind = self._behind or page["more"]
        return any(news) or self.fold.end is not None
