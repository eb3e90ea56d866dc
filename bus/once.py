"""Requests whose repeat has no effect of its own: the first answer is given again.

A request that was sent twice may come twice, the second time after later requests: a late truncation would
cut off what was written since, a late pause would stop what was resumed. Each is remembered until its
deadline, after which it is refused anyway. What failed is not remembered, so that it can be tried again. A
restarted node has forgotten: nothing that its predecessor did not answer can come to it late, since the
broker does not keep requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from dsec.bus.errors import DsecError, InfraError
from dsec.bus.handlers import Call, TypedHandler
from dsec.bus.messages import Request

REMEMBERED: Final = 65_536
"""Requests at most; then the oldest is forgotten, whatever deadline its sender chose."""
RequestT = TypeVar("RequestT", bound=Request)
Key = tuple[str, ...]
Answer = asyncio.Future[bytes | None]


class Once:
    """The requests of one part that were begun or answered lately."""

    def __init__(self, remembered: int = REMEMBERED, longest: int | None = None) -> None:
        """An answer of over `longest` bytes is not remembered: its request is done again."""
        self._remembered = remembered
        self._longest = longest
        self._known: dict[Key, tuple[int, Answer]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def around(self, handler: TypedHandler[RequestT]) -> TypedHandler[RequestT]:
        """`handler`, done once for each operation id of a project on a subject."""

        async def handle(call: Call, request: RequestT, /) -> bytes | None:
            at = call.address
            key = (at.noun, at.verb, at.project, at.sandbox, at.exec, request.op)
            return await self.do(key, request.deadline, lambda: handler(call, request))

        return handle

    async def do(self, key: Key, deadline: int, work: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """What `work` answers, or has answered to the same `key` before `deadline` (unix ms)."""
        self._forget_late()
        if key in self._known:
            return await asyncio.shield(self._known[key][1])
        answer: Answer = asyncio.get_running_loop().create_future()
        self._known[key] = (deadline, answer)
        try:
            done = await work()
        except BaseException as error:
            self._known.pop(key, None)
            answer.set_exception(error if isinstance(error, DsecError) else InfraError("the node failed"))
            answer.exception()  # seen: the caller gets it here
            raise
        answer.set_result(done)
        if self._longest is not None and done is not None and len(done) > self._longest:
            self._known.pop(key, None)
        return done

    def _forget_late(self) -> None:
        """From the oldest on; one with a long deadline keeps those behind it a little longer."""
        now = time.time() * 1000
        while self._known:
            oldest, (deadline, answer) = next(iter(self._known.items()))
            if len(self._known) <= self._remembered and (deadline > now or not answer.done()):
                return
            del self._known[oldest]
