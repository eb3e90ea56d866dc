"""What iam answers over the bus: `iam.<verb>.<p>.<u>` of principals, `quota.*` of core.

Every change and every denial is audited. Any number of iam share the queue group, on any number of machines:
each change is one transaction on the bucket that all follow.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

import orjson

from dsec.bus import subjects
from dsec.bus.audit import Auditor
from dsec.bus.handlers import (
    Call,
    Handler,
    chain,
    decode,
    ok,
    result,
    serving,
    serving_internal,
    typed,
)
from dsec.bus.messages import Request
from dsec.bus.projects import (
    AskBounds,
    AskSubtree,
    CreatePrincipal,
    CreateProject,
    ListPrincipals,
    ListProjects,
    RevokePrincipal,
    RotatePrincipal,
    SetQuota,
)
from dsec.bus.transport import Bus, Received
from dsec.plugins.iam.directory import Directory, Who
from dsec.plugins.iam.ending import Ending
from dsec.plugins.iam.store import Store
from dsec.plugins.iam.tables import Tables

QUEUE: Final = "iam"
AskedT = TypeVar("AskedT", bound=Request)


class Service:
    """Handlers of one iam process."""

    def __init__(self, bus: Bus, store: Store, auditor: Auditor, ending: Ending) -> None:
        self._bus = bus
        self._store = store
        self._auditor = auditor
        self._ending = ending

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer while the block runs."""
        async with contextlib.AsyncExitStack() as stack:
            for verb, handler in self._handlers().items():
                await stack.enter_async_context(
                    serving(
                        self._bus,
                        subjects.served("iam", verb),
                        chain(handler, self._auditor.denials),
                        queue=QUEUE,
                        refused=self._auditor.refused,
                    )
                )
            for subject, answer in (
                (subjects.QUOTA_BOUNDS, self.bounds),
                (subjects.QUOTA_SUBTREE, self.subtree),
            ):
                await stack.enter_async_context(serving_internal(self._bus, subject, answer, queue=QUEUE))
            yield

    def _handlers(self) -> dict[str, Handler]:
        return {
            "project": typed(CreateProject, self._changing(Directory.create_project, "project")),
            "quota": typed(SetQuota, self._changing(Directory.set_quota, "project")),
            "principal": typed(CreatePrincipal, self._changing(Directory.create_principal, "principal")),
            "revoke": typed(RevokePrincipal, self.revoke),
            "rotate": typed(RotatePrincipal, self.rotate),
            "projects": typed(ListProjects, self.projects),
            "principals": typed(ListPrincipals, self.principals),
        }

    def _changing(
        self, change: Callable[[Directory, Who, AskedT], bytes], target: str
    ) -> Callable[[Call, AskedT], Awaitable[bytes]]:
        """A handler that makes the change and audits it; the field `target` names what is changed."""

        async def handle(call: Call, asked: AskedT) -> bytes:
            answer = await self._store.change(lambda tables: change(Directory(tables), _who(call), asked))
            detail = orjson.dumps(asked.model_dump(mode="json", exclude={"op", "deadline", "v", target}))
            self._auditor.note(
                call.address,
                call.subject,
                outcome="ok",
                target=getattr(asked, target),
                detail=detail.decode(),
            )
            return answer

        return handle

    async def revoke(self, call: Call, asked: RevokePrincipal) -> bytes:
        """Forgotten when it is answered; their connections end soon after."""
        gone: set[str] = set()

        def prune(tables: Tables) -> bool:
            names = Directory(tables).prune(_who(call), asked)
            gone.update(() if asked.keep_made else names)  # also when it stays unknown whether it was done
            return bool(names)

        try:
            while await self._store.change(prune):
                pass
            answer = await self._changing(Directory.revoke, "principal")(call, asked)
            gone.update(result(answer)["principals"])
        finally:
            self._ending.end(sorted(gone))
        return answer

    async def rotate(self, call: Call, asked: RotatePrincipal) -> bytes:
        """The former key is worth nothing when it is answered; its connections end soon after."""
        answer = await self._changing(Directory.rotate, "principal")(call, asked)
        self._ending.end([asked.principal])
        return answer

    async def projects(self, call: Call, asked: ListProjects) -> bytes:
        return ok((await self._fresh()).projects(_who(call), asked))

    async def principals(self, call: Call, asked: ListPrincipals) -> bytes:
        return ok((await self._fresh()).principals(_who(call), asked))

    async def bounds(self, message: Received) -> bytes:
        """What bounds a project, for core."""
        asked = decode(AskBounds, message.data)
        return ok((await self._fresh()).bounds(asked.project))

    async def subtree(self, message: Received) -> bytes:
        """A project and all below it, for core."""
        asked = decode(AskSubtree, message.data)
        return ok((await self._fresh()).subtree(asked.project))

    async def _fresh(self) -> Directory:
        return Directory(await self._store.fresh())


def _who(call: Call) -> Who:
    return Who(call.address.project, call.address.principal)
