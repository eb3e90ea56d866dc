"""What one connection serves: its endpoints with their figures, a common cap, and how it stops in good order.

Every `handlers.receiving` of a connection enters here by itself, so that discovery (`micro`), the cap of
`dsec plugin run --concurrency` and draining need nothing from the plugins.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from dsec.bus.errors import DsecError
from dsec.bus.metrics.figures import Figures, Tally
from dsec.bus.transport import Bus, Received, Subscription

Work = Callable[[Received], Awaitable[None]]
_LITERAL = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(slots=True)
class Endpoint:
    """One subject that is served. `errors` are requests that were answered with an error; times in ns."""

    subject: str
    queue: str
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    processing_ns: int = 0

    @property
    def name(self) -> str:
        """The literal tokens of the subject: `sandbox-create` for `sandbox.create.*.*`."""
        return "-".join(token for token in self.subject.split(".") if _LITERAL.fullmatch(token))

    def done(self, began: int) -> int:
        """One request was dealt with, from `began` (perf_counter_ns) until now; how long that was."""
        took = time.perf_counter_ns() - began
        self.requests += 1
        self.processing_ns += took
        return took

    def counting(self, work: Work, tally: Tally) -> Work:
        """`work`, each message counted as a request."""

        async def counted(message: Received) -> None:
            began = time.perf_counter_ns()
            try:
                await work(message)
            finally:
                tally.took(self.done(began))

        return counted

    def failed(self, error: DsecError) -> None:
        self.errors += 1
        self.last_error = f"{error.code}: {error.message}"


@dataclass(slots=True)
class _Open:
    """A subscription and the tasks that work on its messages."""

    subject: str
    subscription: Subscription
    tasks: AbstractSet[asyncio.Task[None]]


@dataclass(slots=True)
class Workload:
    """See the module. `gate`: the cap over all endpoints; without one each has its own."""

    gate: asyncio.Semaphore | None = None
    endpoints: dict[tuple[str, str], Endpoint] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    _open: list[_Open] = field(default_factory=list)

    def cap(self, limit: int | None) -> None:
        """Work on at most `limit` requests at once, from what is served afterwards on."""
        self.gate = asyncio.Semaphore(limit) if limit else None

    def endpoint(self, subject: str, queue: str) -> Endpoint:
        """The figures of `subject`; they go on when it is served again."""
        return self.endpoints.setdefault((subject, queue), Endpoint(subject, queue))

    def opened(
        self, subject: str, subscription: Subscription, tasks: AbstractSet[asyncio.Task[None]]
    ) -> None:
        self._open.append(_Open(subject, subscription, tasks))

    def closed(self, subscription: Subscription) -> None:
        self._open = [one for one in self._open if one.subscription is not subscription]

    @property
    def busy(self) -> int:
        """Requests in hand, those that wait for the cap included."""
        return sum(len(one.tasks) for one in self._open)

    async def drain(self, within: float, subject: str = "") -> int:
        """Take nothing new, of one `subject` or of all, and finish what runs of it.

        Returns how many requests are left after `within` seconds.

        The order that a message reaches us and the unsubscribing have in the broker is kept: what it had
        already given to us is worked on, everything later goes to others.
        """
        until = asyncio.get_running_loop().time() + within
        open_ = [one for one in self._open if subject in {"", one.subject}]
        await asyncio.gather(*(one.subscription.drain() for one in open_), return_exceptions=True)
        while tasks := [task for one in open_ for task in one.tasks]:
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                break
            await asyncio.wait(tasks, timeout=left)
        return sum(len(one.tasks) for one in open_)


def workload_of(bus: Bus) -> Workload:
    """The bus's own, where it has one (NATS); for others a fresh one that nobody asks."""
    found = getattr(bus, "workload", None)
    return found if isinstance(found, Workload) else Workload()
