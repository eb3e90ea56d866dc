"""Bodies of what is said about batches and jobs: by tenants, between core and nodes, and as stored."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from dsec.bus.core.jobs.runs import Runs
from dsec.bus.errors import Failure
from dsec.bus.ids import OperationId
from dsec.bus.messages import VERSION, Message, Request, State

MAX_COUNT: Final = 32_000
JobId = Annotated[str, StringConstraints(pattern=r"^j-[a-z0-9](?:[a-z0-9_-]{0,46}[a-z0-9])?$")]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Overrides = dict[Annotated[int, Field(ge=0, lt=MAX_COUNT)], dict[str, Any]]


class CreateBatch(Request):
    """sandbox.create with a count: `count` sandboxes of template `spec`, number i changed by `overrides[i]`.

    An override replaces fields of the template; `env`, `labels` and `limits` are merged into it. Without
    `job` the batch gets a job of its own.
    """

    spec: dict[str, Any]
    count: Count
    overrides: Overrides = Field(default_factory=dict)
    job: JobId | None = None
    secrets: dict[str, str] = Field(default_factory=dict, description="refused: a batch is stored")


class BatchOrder(Message):
    """job.order: a batch as it is stored until it is done; `spec` and `overrides` have been parsed before."""

    v: int = VERSION
    project: str
    principal: str
    job: str
    op: OperationId
    count: int
    spec: dict[str, Any]
    overrides: Overrides
    traceparent: str = ""


class NodeBatch(Request):
    """node.batch: a node's part of the batch `op`, the numbers in `runs`.

    The answer tells how far they are: when all are settled, and after `wait` seconds in any case. Repeatable.
    `cancel`: what is not running yet is not begun any more.
    """

    project: str
    principal: str
    job: str
    spec: dict[str, Any]
    overrides: Overrides
    runs: Runs
    begin_by: int = Field(description="unix ms; what has not begun by then fails")
    wait: float
    cancel: bool = False


class Failures(Message):
    """Numbers of a batch that failed of the same `error`, an error's body."""

    error: dict[str, Any]
    runs: Runs


class NodeBatchAnswer(Message):
    """Answer of node.batch. What is neither of these is pending; `vetoed` goes elsewhere, for `reason`."""

    running: Runs
    vetoed: Runs
    reason: str = ""
    failed: list[Failures]


class Phase(StrEnum):
    """PLACED: every id can be read, and none changes any more. DONE: each is running, or failed."""

    PLACING = "placing"
    PLACED = "placed"
    DONE = "done"


class Batch(Message):
    """How far a batch is: in the bucket `jobs`, on job.progress and in answers.

    `placed` lists `(start, stop, n)`: those numbers lie on `nodes[n]`. `running` have run; what became of
    them afterwards is told by their records.
    """

    v: int = VERSION
    project: str
    principal: str
    job: str
    op: OperationId
    count: int
    phase: Phase = Phase.PLACING
    cancelled: bool = False
    owner: str = Field("", description="the core process that carries it out")
    nodes: list[str] = Field(default_factory=list)
    placed: list[tuple[int, int, int]] = Field(default_factory=list)
    running: Runs = Field(default_factory=list)
    failed: list[Failures] = Field(default_factory=list)


class StatJob(Request):
    """job.{pause,resume,kill,stat,cancel}. With `batch`: cancel that one; stat answers it as it is."""

    batch: OperationId | None = None


class NodeJob(Request):
    """node.op: `verb` for every sandbox of `job` on the node; answered when done, or after `wait` seconds."""

    project: str
    job: str
    verb: Literal["pause", "resume", "kill", "stat"]
    wait: float = 5.0


class SandboxError(Message):
    """What went wrong with one sandbox."""

    sandbox: str
    error: dict[str, Any]


class NodeJobAnswer(Message):
    """Answer of node.op: states afterwards, how many are still being worked on, and what failed."""

    states: dict[State, int]
    busy: int = 0
    failed: list[SandboxError] = Field(default_factory=list)


class BatchCounts(Message):
    """A batch in short; `failures` by class."""

    op: OperationId
    phase: Phase
    cancelled: bool
    count: int
    running: int
    failures: dict[Failure, int]


class JobStatus(Message):
    """Answer of job.{pause,resume,kill,stat,cancel}: the whole job, over all nodes.

    `busy`: sandboxes that the call still works on; ask again. `unreached`: nodes that did not answer and, by
    the registry, hold something of the job. `failed` names sandboxes that the call failed for, some of many.
    """

    job: str
    states: dict[State, int] = Field(default_factory=dict)
    busy: int = 0
    unreached: list[str] = Field(default_factory=list)
    failed: list[SandboxError] = Field(default_factory=list)
    batches: list[BatchCounts] = Field(default_factory=list)


class Spread(Message):
    """sched.spread: nodes for `count` alike; answered by `{"nodes": {node: how many}}`, maybe fewer."""

    backend: str
    cpu: float | None = None
    memory: int | None = None
    count: int
    excluded: tuple[str, ...] = ()
