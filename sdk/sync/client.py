"""Generated from sdk/client.py by `make twin`: change that file, not this one."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Unpack

from dsec.bus.messages import Record, State
from dsec.bus.nats.credentials import Credentials
from dsec.sdk import fn
from dsec.sdk.client import CREATE_PATIENCE
from dsec.sdk.client import Client as AsyncClient
from dsec.sdk.link import PATIENCE
from dsec.sdk.spec_args import SpecArgs
from dsec.sdk.sync.exec import Exec
from dsec.sdk.sync.jobs import Batch, Job
from dsec.sdk.sync.projects import Principals, Projects
from dsec.sdk.sync.sandbox import Sandbox
from dsec.sdk.twin import base as twin
from dsec.sdk.twin.portal import Portal
from dsec.sdk.watch import Change


class Client(twin.Root[AsyncClient]):
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
        super().__init__(Portal(), AsyncClient(servers, credentials, patience=patience, trace=trace))

    @property
    def projects(self) -> Projects:
        """Projects below one's own, and their quotas."""
        return Projects(self._portal, self._origin.projects)

    @property
    def principals(self) -> Principals:
        """Principals of one's own project and those below."""
        return Principals(self._portal, self._origin.principals)

    def create(
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
        return Sandbox(
            self._portal,
            self._portal.call(self._origin.create(key=key, secrets=secrets, timeout=timeout, **spec)),
        )

    def create_many(
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
        return Batch(
            self._portal,
            self._portal.call(
                self._origin.create_many(count, overrides=overrides, key=key, timeout=timeout, **spec)
            ),
        )

    def job(self, job: str) -> Job:
        """Everything of one job at once. Raises BadId."""
        return Job(self._portal, self._origin.job(job))

    def sandbox(
        self,
        *,
        key: str | None = None,
        secrets: Mapping[str, str] | None = None,
        timeout: float = CREATE_PATIENCE,
        **spec: Unpack[SpecArgs],
    ) -> AbstractContextManager[Sandbox]:
        """`create`, destroyed when the block ends. Raises as `create` and `Sandbox.destroy`."""
        return twin.block(
            self._portal,
            self._origin.sandbox(key=key, secrets=secrets, timeout=timeout, **spec),
            lambda made: Sandbox(self._portal, made),
        )

    def attach(self, sandbox: str) -> Sandbox:
        """A sandbox by its id, from anywhere. Raises BadId, NoSuchSandbox, NodeLost."""
        return Sandbox(self._portal, self._portal.call(self._origin.attach(sandbox)))

    def list(self, *, state: State | str | None = None, job: str | None = None) -> Iterator[Record]:
        """The project's sandboxes, each once, the one that changed longest ago first.

        Raises SpecError, BrokerDown, NodeLost.
        """
        return twin.each(self._portal, self._origin.list(state=state, job=job), twin.same)

    def watch(self, *, job: str | None = None) -> Generator[Change, None, None]:
        """The project's sandboxes as they are, then each change of one, until the caller leaves the loop.

        Nothing is missed across a broken connection: what a sandbox has come to meanwhile is told as one
        change. `job`: only of this one. Raises BrokerDown, NodeLost when the list cannot be read.
        """
        return twin.each(self._portal, self._origin.watch(job=job), twin.same)

    def call(
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
        return self._portal.call(
            self._origin.call(
                what,
                *args,
                kwargs=kwargs,
                entry=entry,
                stdin=stdin,
                files=files,
                executable=executable,
                outputs=outputs,
                keep=keep,
                **more,
            )
        )

    def judge(
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
        return self._portal.call(
            self._origin.judge(source, cases, checker=checker, all_cases=all_cases, **more)
        )

    def exec(self, sandbox: str, exec_id: str, *, offset: int = 0) -> Exec:
        """The handle of a command started earlier, or elsewhere, at byte `offset` of its output. Raises
        BadId.
        """
        return Exec(self._portal, self._origin.exec(sandbox, exec_id, offset=offset))
