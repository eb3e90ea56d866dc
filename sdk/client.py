"""The client: one connection per process, sandboxes by one parameter on any backend.

    async with dsec.Client() as client:
        async with client.sandbox(backend="container", image="debian-12-python") as sandbox:
            result = await sandbox.run("pytest -q", timeout=60)

Everything raised is a `DsecError` with `.failure`, `.code` and `.field`. Every mutating call takes a `key`:
the same key returns the first answer for 24 hours, and the client itself repeats a call only under its own
key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self, Unpack

from dsec.bus.core.jobs.messages import Batch as BatchState
from dsec.bus.errors import BrokerDown, DsecError, GoneError
from dsec.bus.ids import check
from dsec.bus.messages import Record, State
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Bus
from dsec.sdk import config, fn
from dsec.sdk.exec import Exec
from dsec.sdk.jobs import Batch, Job, overrides_of
from dsec.sdk.link import PATIENCE, Link, new_operation
from dsec.sdk.projects import Principals, Projects
from dsec.sdk.sandbox import Sandbox, stat
from dsec.sdk.spec_args import SpecArgs, asked
from dsec.sdk.watch import Change, listed, watch

log = logging.getLogger(__name__)

CREATE_PATIENCE: Final = 120.0
CREATE_ATTEMPT: Final = 15.0
CREATE_FIRST: Final = 2.0
"""Seconds: a cold image takes long, but most silence is that of a core which was killed over the request."""
BATCH_ATTEMPT: Final = 5.0


class Client:
    """Sandboxes of one project. `servers` and `credentials` (or its file) default as `config` tells.

    `patience`: seconds until a request that nobody answers fails with an `infra` error. `trace`: each call
    that belongs to no trace yet begins one (`dsec.trace`).
    """

    def __init__(
        self,
        servers: str | None = None,
        credentials: Credentials | str | os.PathLike[str] | None = None,
        *,
        patience: float = PATIENCE,
        trace: bool = False,
    ) -> None:
        self._trace = trace
        self._servers = servers
        self._credentials = credentials
        self._patience = patience
        self._stack = AsyncExitStack()
        self._connected: Link | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def over(
        cls, bus: Bus, project: str, principal: str, *, patience: float = PATIENCE, trace: bool = False
    ) -> AsyncIterator[Self]:
        """A client over a bus that somebody else opens and closes."""
        client = cls(patience=patience, trace=trace)
        client._connected = Link(bus, project, principal, patience=patience, trace=trace)
        try:
            yield client
        finally:
            await client._close_readers()

    async def __aenter__(self) -> Self:
        """Connect. Raises BrokerDown, Unauthenticated."""
        who = config.credentials(self._credentials)
        wire = await self._stack.enter_async_context(
            Wire.connect(config.servers(self._servers), who, name=f"sdk {who.principal}")
        )
        self._connected = Link(wire, who.project, who.principal, patience=self._patience, trace=self._trace)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close_readers()
        self._connected = None
        await self._stack.aclose()

    async def _close_readers(self) -> None:
        for reader in list(self._link.readers):
            await reader.close()

    @property
    def _link(self) -> Link:
        if self._connected is None:
            raise BrokerDown("the client is not connected: use it inside `async with dsec.Client()`")
        return self._connected

    @property
    def projects(self) -> Projects:
        """Projects below one's own, and their quotas."""
        return Projects(self._link)

    @property
    def principals(self) -> Principals:
        """Principals of one's own project and those below."""
        return Principals(self._link)

    async def create(
        self,
        *,
        key: str | None = None,
        secrets: Mapping[str, str] | None = None,
        timeout: float = CREATE_PATIENCE,
        **spec: Unpack[SpecArgs],
    ) -> Sandbox:
        """A running sandbox, acknowledged: its node has it on disk and its inside has answered.

        `key`: the same key gives the same sandbox. `secrets`: environment values that reach no stored
        message. `timeout`: seconds for all attempts together. Raises UnknownField or SpecError naming the
        field, Unsupported, NoSuchImage, Conflict (the key was used with another spec), NoCapacity,
        TooLarge, DeadlineExceeded.
        """
        body: dict[str, Any] = {"spec": asked(spec)}
        if secrets:
            body["secrets"] = dict(secrets)
        op = check("operation", key) if key is not None else new_operation()
        subject = self._link.subject("sandbox", "create")
        answer = await self._link.call(
            subject, body, op=op, patience=timeout, attempt=CREATE_ATTEMPT, first=CREATE_FIRST
        )
        return Sandbox(self._link, answer)

    async def create_many(
        self,
        count: int,
        *,
        overrides: Mapping[int, SpecArgs] | Sequence[SpecArgs] = (),
        key: str | None = None,
        timeout: float = CREATE_PATIENCE,
        **spec: Unpack[SpecArgs],
    ) -> Batch:
        """`count` sandboxes of one template in one durable call: on return every id can be read.

        `overrides[i]` replaces fields of the template for number i (`env`, `labels` and `limits` are merged).
        What cannot be created is told by `Batch.failures`. Without `job` the batch is a job of its own.
        `key`: the same key gives the same batch. Raises UnknownField or SpecError naming the field (such as
        `overrides.7.limits.cpu`), Conflict, TooLarge (split the batch), DeadlineExceeded (call again with the
        same key).
        """
        body = {"spec": asked(spec), "count": count, "overrides": dict(overrides_of(overrides))}
        op = check("operation", key) if key is not None else new_operation()
        subject = self._link.subject("sandbox", "create")
        answer = await self._link.call(subject, body, op=op, patience=timeout, attempt=BATCH_ATTEMPT)
        return Batch(self._link, BatchState.model_validate(answer))

    def job(self, job: str) -> Job:
        """Everything of one job at once. Raises BadId."""
        return Job(self._link, check("job", job))

    @contextlib.asynccontextmanager
    async def sandbox(
        self,
        *,
        key: str | None = None,
        secrets: Mapping[str, str] | None = None,
        timeout: float = CREATE_PATIENCE,
        **spec: Unpack[SpecArgs],
    ) -> AsyncIterator[Sandbox]:
        """`create`, destroyed when the block ends. Raises as `create` and `Sandbox.destroy`."""
        made = await _created(
            asyncio.ensure_future(self.create(key=key, secrets=secrets, timeout=timeout, **spec))
        )
        try:
            yield made
        except BaseException:
            await _destroyed(made)  # the block's own error is the one to tell
            raise
        with contextlib.suppress(GoneError):
            await made.destroy()

    async def attach(self, sandbox: str) -> Sandbox:
        """A sandbox by its id, from anywhere. Raises BadId, NoSuchSandbox, NodeLost."""
        return Sandbox(self._link, await stat(self._link, sandbox))

    async def list(
        self, *, state: State | str | None = None, job: str | None = None
    ) -> AsyncIterator[Record]:
        """The project's sandboxes, each once, the one that changed longest ago first.

        Raises SpecError, BrokerDown, NodeLost.
        """
        told: set[str] = set()
        async for record in listed(self._link, state=state, job=job):
            if record.sandbox not in told:
                told.add(record.sandbox)
                yield record

    def watch(self, *, job: str | None = None) -> AsyncGenerator[Change, None]:
        """The project's sandboxes as they are, then each change of one, until the caller leaves the loop.

        Nothing is missed across a broken connection: what a sandbox has come to meanwhile is told as one
        change. `job`: only of this one. Raises BrokerDown, NodeLost when the list cannot be read.
        """
        return watch(self._link, job=job)

    async def call(
        self,
        what: Callable[..., Any] | str,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        entry: str | None = None,
        stdin: fn.Content = b"",
        files: Mapping[str, fn.Content | fn.Artefact] | None = None,
        executable: Iterable[str] = (),
        outputs: Sequence[str] = (),
        keep: Sequence[str] = (),
        **more: Unpack[fn.CallArgs],
    ) -> fn.FnResult:
        """One stateless call: a Python function with `args` and `kwargs`, or source text, run on some node.

        With text, `entry` names the function that is called, otherwise it is run as a program with `stdin`.
        `files` lie in its working directory, `outputs` are brought back from there, `keep` become artefacts.
        Nothing else is left of it. Raises SpecError, NoSuchImage, NoSuchArtefact, Unsupported, TooLarge,
        NoCapacity, Overloaded, DeadlineExceeded.
        """
        options: dict[str, Any] = {"entry": entry, "outputs": [*outputs], "keep": [*keep], **more}
        if kwargs is not None:
            options["kwargs"] = dict(kwargs)
        return await fn.call(
            self._link, what, args, files=files, executable=executable, stdin=stdin, **options
        )

    async def judge(
        self,
        source: str,
        cases: Sequence[fn.Case],
        *,
        checker: str | fn.CheckerArgs = "exact",
        all_cases: bool = True,
        **more: Unpack[fn.CallArgs],
    ) -> fn.Judged:
        """Run a program once for each case, in isolation, within `limits` each; compare what it prints.

        `all_cases` False: the first case that fails ends it. Raises as `call`.
        """
        options: dict[str, Any] = {**more}
        return await fn.judge(self._link, source, cases, checker=checker, all_cases=all_cases, **options)

    def exec(self, sandbox: str, exec_id: str, *, offset: int = 0) -> Exec:
        """The handle of a command started earlier, or elsewhere, at byte `offset` of its output. Raises
        BadId.
        """
        return Exec(self._link, check("sandbox", sandbox), check("exec", exec_id), offset=offset)


async def _created(creating: asyncio.Future[Sandbox]) -> Sandbox:
    """The sandbox; when we are cancelled meanwhile it is waited for and destroyed, since nobody knows its
    id.
    """
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        with contextlib.suppress(DsecError):
            await _destroyed(await creating)
        raise


async def _destroyed(sandbox: Sandbox) -> None:
    try:
        await sandbox.destroy()
    except DsecError as error:
        log.warning("%s was not destroyed, its ttl will: %s", sandbox.id, error)
