"""Stateless calls (DSec's FnCall): Python functions, scripts, C and C++, and judges of programs by the
thousand.

Every node serves `fn.call` in one queue group, those with declared devices `fn.gpu` too. A call leaves no
record; one audit event tells of it. A repeated operation finds the first answer while its deadline lasts, if
it comes to the same node; on another one the call is done again, which nobody can tell from the outside.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from dsec.bus import subjects
from dsec.bus.audit import Auditor
from dsec.bus.caller import Caller, CallResult, FnCall, parse_call
from dsec.bus.errors import DsecError, Overloaded, SpecError
from dsec.bus.handlers import Call, decode, ok, receiving, serving, typed
from dsec.bus.host import Context
from dsec.bus.messages import DrainNode
from dsec.bus.nats.appender import Appender
from dsec.bus.once import Once
from dsec.bus.transport import Bus, Received
from dsec.plugins.fncall.caller import FnCaller

__all__ = ["FnCaller", "Fncall"]

QUEUE: Final = "fncall"
CONCURRENCY: Final = 1024
"""Calls in hand, waiting ones included; a project has a quarter of them at most."""
REMEMBERED, LONG = 16_384, 16_384
"""Answers that are kept for repeats, and their bytes at most."""


class Fncall:
    """Answers fn.call on one node; `context` needs a node and images."""

    def __init__(self, caller: Caller, auditor: Auditor) -> None:
        self._caller = caller
        self._auditor = auditor
        self.draining = False

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus, context: Context) -> AsyncIterator[None]:
        """Serve while the block runs; calls under way then end. Raises SpecError, MissingTool."""
        if not context.node or context.images is None:
            raise SpecError("calls need a node id and images", field="context")
        async with (
            Appender.running(bus) as appender,
            FnCaller.running(context.home, context.images, context.node) as caller,
        ):
            auditor = Auditor(appender, "fncall")
            fncall = cls(caller, auditor)
            handler = typed(FnCall, Once(REMEMBERED, LONG).around(fncall.call))
            async with contextlib.AsyncExitStack() as stack:
                drains = receiving(bus, subjects.node_drain(context.node), fncall.drain)
                await stack.enter_async_context(drains)
                for verb in ("call", "gpu") if caller.devices else ("call",):
                    block = serving(
                        bus,
                        subjects.served("fn", verb),
                        auditor.denials(handler),
                        queue=QUEUE,
                        concurrency=CONCURRENCY,
                        refused=auditor.refused,
                    )
                    await stack.enter_async_context(block)
                yield

    async def call(self, call: Call, request: FnCall) -> bytes:
        """One call. Raises as `Caller.call`, and Overloaded while the node is drained."""
        if self.draining:
            raise Overloaded("this node is being drained; another one may do it", retry_after=0.2)
        done = await self._caller.call(
            call.address.project, parse_call(request.call), request.deadline / 1000
        )
        self._auditor.note(call.address, call.subject, outcome="ok", target=request.op, detail=told(done))
        return ok(done)

    async def drain(self, message: Received) -> None:
        """The operator's word to the node, which its edge answers."""
        with contextlib.suppress(DsecError):
            self.draining = not decode(DrainNode, message.data).undo


def told(done: CallResult) -> str:
    """What the audit keeps of a call: how it ended, never what it was given or printed."""
    return f"{done.ended} {done.verdict or ''}".strip()
