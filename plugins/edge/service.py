"""What the node answers: requests about its sandboxes and their files, and core's orders.

A sandbox of another project looks as if it did not exist; the attempt is audited. Each request counts as use
of the sandbox. Mutating calls are audited with their outcome, except exec.start and exec.stdin: the exec log
and the trajectory are their record.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

from dsec.bus import operation, subjects
from dsec.bus.errors import (
    DsecError,
    NoCapacity,
    NoSuchSandbox,
    SpecError,
    Unsupported,
)
from dsec.bus.exec_list import ListExecs
from dsec.bus.handlers import (
    Call,
    Handler,
    check_reply,
    decode,
    in_time,
    ok,
    result,
    serving,
    serving_internal,
    typed,
)
from dsec.bus.messages import (
    Drained,
    DrainNode,
    GrantCredit,
    NodeCreate,
    PackSandbox,
    PauseSandbox,
    RenewSandbox,
    Request,
    ResizeExec,
    SignalExec,
    StartExec,
    StopSandbox,
    Veto,
    WriteStdin,
)
from dsec.bus.transport import Received
from dsec.plugins.edge import layers
from dsec.plugins.edge.create import Creator
from dsec.plugins.edge.ending import Ending
from dsec.plugins.edge.execs import Execs
from dsec.plugins.edge.files import Files
from dsec.plugins.edge.freezing import frozen, pause, resume, wake
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.once import Once
from dsec.plugins.edge.ports import Ports
from dsec.plugins.edge.sandboxes import Sandbox
from dsec.plugins.edge.stopping import Stopping
from dsec.plugins.edge.watches import Watches

CONCURRENCY: Final = 4096
WAKES: Final = 5
"""Times that a request resumes a sandbox which is paused anew before the request's turn."""
AUDITED: Final = frozenset(
    {
        ("sandbox", "destroy"),
        ("sandbox", "pause"),
        ("sandbox", "resume"),
        ("sandbox", "stop"),
        ("sandbox", "start"),
        ("sandbox", "pack"),
        ("sandbox", "renew"),
        ("exec", "signal"),
        ("file", "remove"),
    }
)


class Service:
    """Handlers of one node."""

    def __init__(self, node: Node, creator: Creator, stopping: Stopping, ending: Ending) -> None:
        self._node = node
        self._creator = creator
        self._stopping = stopping
        self._ending = ending
        once = Once()
        execs, files = Execs(node), Files(node, once)
        self._handlers: dict[tuple[str, str], Handler] = {
            ("sandbox", "stat"): typed(Request, self.stat),
            ("sandbox", "destroy"): typed(Request, self.destroy),
            ("sandbox", "pause"): typed(PauseSandbox, once.around(self.pause)),
            ("sandbox", "resume"): typed(Request, once.around(self.resume)),
            ("sandbox", "stop"): typed(StopSandbox, once.around(self.stop)),
            ("sandbox", "start"): typed(Request, once.around(self.start)),
            ("sandbox", "pack"): typed(PackSandbox, once.around(self.pack)),
            ("sandbox", "renew"): typed(RenewSandbox, once.around(self.renew)),
            ("exec", "list"): typed(ListExecs, execs.list),
            ("exec", "start"): typed(StartExec, execs.start),
            ("exec", "stdin"): typed(WriteStdin, execs.stdin),
            ("exec", "signal"): typed(SignalExec, once.around(execs.signal)),
            ("exec", "resize"): typed(ResizeExec, execs.resize),
            ("exec", "credit"): typed(GrantCredit, execs.credit),
            **files.handlers(),
            **Ports(node, once).handlers(),
            **Watches(node).handlers(),
        }

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer while the block runs."""
        node = self._node
        async with contextlib.AsyncExitStack() as stack:
            for subject in subjects.node_requests(node.name):
                await stack.enter_async_context(
                    serving(
                        node.bus, subject, self.handle, concurrency=CONCURRENCY, refused=node.auditor.refused
                    )
                )
            await stack.enter_async_context(
                serving_internal(
                    node.bus, subjects.node_create(node.name), self.create, concurrency=CONCURRENCY
                )
            )
            await stack.enter_async_context(
                serving_internal(node.bus, subjects.node_drain(node.name), self.drain)
            )
            yield

    async def handle(self, call: Call) -> bytes | None:
        """One request of a tenant, audited where it changes something or is denied."""
        at = call.address
        handler = self._handlers.get((at.noun, at.verb))
        if handler is None:
            raise Unsupported(f"{at.noun}.{at.verb} is not served by this node", field="subject")
        await self._node.open.wait()
        try:
            answer = await self._awake(handler, call)
        except DsecError as error:
            if isinstance(error, NoSuchSandbox) or (at.noun, at.verb) in AUDITED:
                self._audit(at, call.subject, error.code, error.message)
            self._node.sandboxes.check_lost(at.sandbox, at.project)
            raise
        if (at.noun, at.verb) in AUDITED:
            self._audit(at, call.subject, "ok")
        return answer

    def _audit(self, at: subjects.Address, subject: str, outcome: str, detail: str = "") -> None:
        self._node.auditor.note(at, subject, outcome=outcome, target=at.exec or at.sandbox, detail=detail)

    async def _awake(self, handler: Handler, call: Call) -> bytes | None:
        """The handler's answer; a sandbox that it finds asleep is resumed for it, and that is audited."""
        for _ in range(WAKES):
            try:
                return await handler(call)
            except SpecError as error:
                at, found = call.address, self._node.sandboxes.find(call.address.sandbox)
                if error.field != "state" or found is None or not found.wakes:
                    raise
                if await wake(found, self._node.sandboxes):
                    who = subjects.Address("sandbox", "resume", at.project, at.principal)
                    self._node.auditor.note(
                        who, call.subject, outcome="ok", target=at.sandbox, detail=f"for {at.noun}.{at.verb}"
                    )
        return await handler(call)

    # --- create

    async def create(self, message: Received) -> bytes | None:
        """Core's order; the answer goes to the tenant. A veto gives it back to core to be placed again."""
        order = decode(NodeCreate, message.data)
        check_reply(message.reply, order.principal)
        await self._node.open.wait()
        in_time(order)
        try:
            answer = await self._creator.create(order)
        except NoCapacity as reason:
            await self._veto(order, message.reply, reason)
            return None
        except DsecError as error:
            self._audit_create(order, message.subject, error.code, error.message)
            raise
        self._audit_create(order, message.subject, "ok")
        return answer

    async def _veto(self, order: NodeCreate, reply: str, reason: NoCapacity) -> None:
        veto = Veto(order=order, reply=reply, reason=reason.message)
        left = max(0.1, order.deadline / 1000 - time.time())
        answer = await self._node.bus.request(
            subjects.SCHED_VETO,
            veto.model_dump_json().encode(),
            timeout=min(left, 10.0),
            headers=operation.onward(),
        )
        result(answer.data)

    def _audit_create(self, order: NodeCreate, subject: str, outcome: str, detail: str = "") -> None:
        who = subjects.Address("sandbox", "create", order.project, order.principal)
        self._node.auditor.note(who, subject, outcome=outcome, target=order.sandbox, detail=detail)

    async def drain(self, message: Received) -> bytes:
        """The operator's word: take nothing new, or take work again; what is there may be destroyed, too."""
        node, asked = self._node, decode(DrainNode, message.data)
        in_time(asked)
        node.draining = not asked.undo
        node.sandboxes.changed.set()
        if asked.destroy and not asked.undo:
            node.tasks.spawn(self._ending.drain(), "drain")
        operator = subjects.Address("node", "drain", "none", "operator")
        node.auditor.note(operator, message.subject, outcome="ok", target=node.name)
        return ok(Drained(draining=node.draining, sandboxes=len(node.sandboxes)))

    # --- one sandbox

    def _sandbox(self, call: Call) -> Sandbox:
        return self._node.sandboxes.get(call.address.sandbox, call.address.project)

    async def stat(self, call: Call, _: Request) -> bytes:
        """The sandbox's record, also of one that a batch has still to create."""
        coming = self._node.coming.get(call.address.sandbox)
        if coming is not None and coming.project == call.address.project:
            return ok(coming)
        return ok(self._sandbox(call).record)

    async def destroy(self, call: Call, _: Request) -> bytes:
        """Nothing is left of it; repeatable."""
        try:
            sandbox = self._sandbox(call)
        except NoSuchSandbox:
            again = await self._ending.destroyed(call.address.sandbox, call.address.project)
            if again is None:
                raise
            return again
        await self._ending.destroy(sandbox)
        return ok()

    async def pause(self, call: Call, request: PauseSandbox) -> bytes:
        """Freeze all processes; repeatable. Raises Unsupported, DiskFull."""
        sandbox = self._sandbox(call)
        await pause(sandbox, self._node.sandboxes, held=not request.resume_on_request)
        return ok(sandbox.record)

    async def resume(self, call: Call, _: Request) -> bytes:
        """Thaw; repeatable. Raises Unsupported, DiskFull."""
        sandbox = self._sandbox(call)
        await resume(sandbox, self._node.sandboxes)
        return ok(sandbox.record)

    async def stop(self, call: Call, request: StopSandbox) -> bytes:
        """End what runs, keep what was written; repeatable. Raises SpecError, DiskFull."""
        sandbox = self._sandbox(call)
        await self._stopping.stop(sandbox, request.grace)
        return ok(sandbox.record)

    async def start(self, call: Call, _: Request) -> bytes:
        """Run again; repeatable. Raises NoCapacity, SpecError, DiskFull, and as a create does."""
        sandbox = self._sandbox(call)
        await self._stopping.start(sandbox)
        return ok(sandbox.record)

    async def pack(self, call: Call, request: PackSandbox) -> bytes:
        """The writable layer as a layer, from a frozen sandbox. Raises Conflict, DiskFull."""
        sandbox = self._sandbox(call)
        async with frozen(sandbox):
            layer = await layers.pack(
                self._node.images, call.address.project, sandbox.id, request.name, request.paths
            )
        return ok(layer)

    async def renew(self, call: Call, request: RenewSandbox) -> bytes:
        """A new time to live, counted from now."""
        sandbox = self._sandbox(call)
        expires = int((time.time() + request.ttl) * 1000)
        record = sandbox.record.model_copy(update={"expires": expires})
        return ok(await self._node.sandboxes.rewrite(sandbox, record, what="renewed"))
