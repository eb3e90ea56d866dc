"""Bodies of requests, answers, records and events; internal ones ignore unknown fields, tell a version.

Every request carries an operation id (`op`, the idempotency key) and an absolute `deadline` in unix
milliseconds. An answer is `{"ok": …}` or `{"error": …}` as JSON, except where `frames` says otherwise.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from dsec.bus.errors import Failure, SpecError
from dsec.bus.ids import OperationId
from dsec.bus.spec import MAX_SECONDS, EnvName, Limits, NoNul, Spec

VERSION = 1

Position = Annotated[int, Field(ge=0, lt=1 << 63)]
"""An offset in bytes or a number in a stream; the kernel and the broker hold no more."""
UnixMs = Annotated[int, Field(ge=0, lt=1 << 53)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[^=\x00]+$", max_length=4096)]
"""Of a command's environment variable: whatever execve(2) can pass on."""


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Request(Message):
    """Envelope of every request."""

    v: int = VERSION
    op: OperationId
    deadline: UnixMs = Field(description="unix ms; later, the request is refused")


class State(StrEnum):
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    UNKNOWN = "unknown"
    FAILED = "failed"
    DESTROYED = "destroyed"


class CreateSandbox(Request):
    """sandbox.create. `spec` is parsed strictly by core (`spec.parse_spec`). `secrets` are environment values
    that never reach a stored message."""

    spec: dict[str, Any]
    secrets: dict[EnvName, NoNul] = Field(default_factory=dict)


class NodeCreate(Request):
    """node.create: core's order. `excluded` lists nodes that vetoed it."""

    project: str
    principal: str
    sandbox: str
    spec: Spec
    secrets: dict[str, str] = Field(default_factory=dict)
    excluded: tuple[str, ...] = ()


class Veto(Message):
    """sched.veto: a node gives a create back, with the caller's reply subject."""

    order: NodeCreate
    reply: str
    reason: str


class Place(Message):
    """sched.place: which node? Answered by `{"ok": {"node": …}}` or NoCapacity; with a `count` also by
    `nodes`, one for each of so many alike, or fewer when there is no room for all.

    With `at`: whether that node is alive, full or not; answered by its name, or NodeLost."""

    backend: str
    at: str | None = None
    cpu: float | None = None
    memory: int | None = None
    excluded: tuple[str, ...] = ()
    count: int = Field(1, ge=1, le=1000)
    ops: tuple[str, ...] = Field((), description="the operations that ask, in the order of the nodes")
    traces: dict[str, str] = Field(default_factory=dict, description="operation -> its `traceparent`")


class Record(Message):
    """A sandbox in the registry, in answers and in events. Written by its node only."""

    v: int = VERSION
    sandbox: str
    project: str
    principal: str
    node: str
    epoch: int
    state: State
    spec: Spec
    applied: Limits = Field(description="limits as applied by the backend")
    created: int = Field(description="unix ms")
    expires: int = Field(description="unix ms")
    changed: int = Field(0, description="grows with each change within an epoch; near unix ms")
    failure: Failure | None = None
    reason: str = ""
    held: bool = Field(default=False, description="paused until it is resumed: no request resumes it")
    fenced: bool = Field(default=False, description="declared failed while its node was away: a tombstone")


class ListSandboxes(Request):
    """sandbox.list: the project's sandboxes, the one that changed longest ago first; or just `sandbox`."""

    state: State | None = None
    job: str | None = None
    sandbox: str | None = None
    gone: bool = Field(default=False, description="destroyed ones too, for as long as they are remembered")
    limit: int = Field(1000, ge=1, le=1000)
    cursor: Position = Field(0, description="continue at the former page's `cursor`")
    after: str = Field("", description="of older clients: continue after this sandbox")


class Sandboxes(Message):
    """Answer of sandbox.list: a page, empty perhaps though there are more.

    A sandbox that changes meanwhile moves to the end: it may come twice, and is never missed.
    """

    sandboxes: list[Record]
    more: bool
    cursor: int = 0


class PackSandbox(Request):
    """sandbox.pack: the writable layer as layer `name`; `paths`, absolute, keep only what lies under them."""

    name: str
    paths: tuple[str, ...] | None = None


class PauseSandbox(Request):
    """sandbox.pause: the next request for the inside resumes it, unless told otherwise."""

    resume_on_request: bool = True


class StopSandbox(Request):
    """sandbox.stop: commands are asked to end and have `grace` seconds, then they are killed."""

    grace: float = Field(0.0, ge=0, le=20)


class RenewSandbox(Request):
    """sandbox.renew: destroyed `ttl` seconds from now."""

    ttl: float = Field(gt=0, le=7 * 86400)


class Layer(Message):
    """A layer in the catalog."""

    name: str
    digest: str = Field(description="sha256 of the EROFS file, hex")
    size: int = Field(description="bytes of the EROFS file")
    kind: Literal["base", "workspace", "toolkit", "pack"]


class Terminal(Message):
    """The size of a terminal in characters."""

    rows: int = Field(24, ge=1, le=0xFFFF)
    columns: int = Field(80, ge=1, le=0xFFFF)


class StartExec(Request):
    """exec.start. The exec's id is `ids.exec_of(op)`: a repeated start finds the first one.

    `stdin` is given whole (base64 of it in JSON), or kept open for exec.stdin when `stdin_open`.
    `detach` answers as soon as the command is forked; the log then has everything.
    `durable` answers only when the record is stored.

    With `shell` it opens a session, which is an exec as well: "bash", or what it names, stays and reads its
    commands from the platform; without `argv`. With `session`, the id of that exec, `argv` is one string of
    shell code that runs in it; directory, environment, user and limits are the session's.
    With `terminal` it runs on one: keystrokes go to `exec.stdin`, both streams come as stdout.
    """

    argv: tuple[str, ...] = ()
    shell: str | None = Field(None, max_length=4095, description='"": bash, or sh where there is none')
    session: str | None = None
    terminal: Terminal | None = None
    limits: Limits | None = Field(None, description="cpu, memory and pids of this command alone")
    cwd: str | None = None
    env: dict[VariableName, str] = Field(default_factory=dict)
    user: str | None = None
    timeout: float | None = Field(
        None, gt=0, le=MAX_SECONDS, description="seconds until the whole tree is killed"
    )
    stdin: str | None = Field(None, description="base64")
    stdin_open: bool = False
    log_bytes: Position | None = Field(None, ge=1024)
    detach: bool = False
    durable: bool = False

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        """Raises SpecError for what does not go together."""
        if self.shell is None and not self.argv:
            raise SpecError("argv: a command needs at least one argument", field="argv")
        if self.shell is not None:
            self._without("a session", "argv", "session", "terminal", "timeout", "stdin", "stdin_open")
        if self.session is not None:
            if len(self.argv) != 1:
                raise SpecError("argv: in a session it is one string of shell code", field="argv")
            self._without("a command in a session", "terminal", "cwd", "env", "user", "limits", "stdin_open")
        if self.terminal is not None:
            self._without("a command on a terminal", "stdin")
        return self

    def _without(self, what: str, *fields: str) -> None:
        for field in fields:
            if getattr(self, field):
                raise SpecError(f"{field}: {what} has none of its own", field=field)


class Ended(StrEnum):
    """How a command ended. What a command did is a result, not an error."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    OOM = "oom"
    LOG_QUOTA = "log_quota"


class ExecEnd(Message):
    """How an exec ended; the metadata of an EXIT or INLINE frame."""

    ended: Ended
    code: int | None = Field(None, description="exit code, when ended is exit")
    signal: int | None = Field(None, description="signal number, when it died of one")
    wall_ms: float
    cpu_ms: float
    max_rss: int = Field(description="bytes")
    truncated: bool = Field(default=False, description="output past the quota was not captured")
    output_bytes: int = Field(description="bytes captured, both streams")
    limits: dict[str, float] = Field(default_factory=dict, description="of its own, as applied")


class WriteStdin(Request):
    """exec.stdin: `data` (base64) at `offset`; a repeated offset is dropped; `eof` closes it afterwards."""

    offset: Position
    data: str = ""
    eof: bool = False


class SignalExec(Request):
    """exec.signal: to the command's leader, or (`tree`, SIGKILL only) to all its processes."""

    signum: int = Field(ge=1, le=64)
    tree: bool = False


class ResizeExec(Request):
    """exec.resize: the command's terminal has another size; its foreground processes get SIGWINCH."""

    rows: int = Field(ge=1, le=0xFFFF)
    columns: int = Field(ge=1, le=0xFFFF)


class GrantCredit(Request):
    """exec.credit: the reader can take output up to this absolute offset; holds for `lease` seconds."""

    offset: Position
    lease: float = Field(10.0, gt=0, le=60)


class FileRequest(Request):
    """file.stat, file.list, file.remove: `path` is absolute inside the sandbox."""

    path: str = Field(min_length=1, max_length=4095)
    recursive: bool = False
    after: str = Field("", description="file.list: continue after this name")


class ReadFile(FileRequest):
    """file.read: `length` bytes at `offset`; the answer is raw: `frames.pack_data`."""

    offset: Position = 0
    length: int = Field(ge=1, le=512 * 1024)


class WriteFile(FileRequest):
    """file.write: header of a raw request (`frames.pack_data`). `truncate` starts the file anew; with
    `directory` it makes a directory, with `target` a symbolic link; parents are made with mode 0755."""

    offset: Position = 0
    mode: int = Field(0o644, ge=0, le=0o7777)
    truncate: bool = False
    directory: bool = False
    target: str | None = None


class OpenPort(Request):
    """port.open: a connection to TCP `port` inside, named by the request's `op`.

    `within`: seconds to wait for somebody who listens; `probe`: close it again at once."""

    port: int = Field(ge=1, le=65535)
    within: float = Field(0.0, ge=0, le=5)
    probe: bool = False


class SendPort(Request):
    """port.send: header of a raw request (`frames.pack_data`): bytes at `offset` of what is sent; `eof`: no
    more follow. Answered with the offset that was reached, when they were taken or after a while."""

    connection: OperationId
    offset: Position
    eof: bool = False


class RecvPort(Request):
    """port.recv: bytes from `offset` on, all before it has arrived. A long poll, answered raw
    (`frames.pack_data`): header ReceivedPort, then the bytes."""

    connection: OperationId
    offset: Position


class ReceivedPort(Message):
    """Without bytes and marks: nothing has come yet."""

    eof: bool = Field(default=False, description="nothing follows these bytes")
    reset: bool = Field(default=False, description="the inside broke the connection off")


class ClosePort(Request):
    """port.close: `reset`: broken off, not closed in order."""

    connection: OperationId
    reset: bool = False


class FileInfo(Message):
    """One entry of a file system; `mode` has the type bits, `mtime` is unix seconds."""

    path: str
    size: int
    mode: int
    mtime: float
    uid: int = 0
    gid: int = 0
    target: str | None = None


class FetchLog(Request):
    """log.fetch: frames of `exec` from byte `offset` on, or from stream sequence `cursor` on.

    The answer is raw (`frames.pack_data`): header FetchedLog, then `frames.pack_frames`.
    """

    sandbox: str
    exec: str
    offset: Position = 0
    cursor: Position = 0
    max_bytes: int = Field(512 * 1024, ge=1024, le=768 * 1024)


class FetchedLog(Message):
    cursor: int = Field(description="continue here")
    more: bool = Field(description="stored frames follow; false at the present end of the log")


class Heartbeat(Message):
    """node.heartbeat, 1 Hz: totals only, never lists."""

    v: int = VERSION
    node: str
    epoch: int
    time: int = Field(description="unix ms of the node's clock")
    backends: dict[str, list[str]] = Field(description="backend -> capabilities")
    cpu: float = Field(description="cores")
    memory: int = Field(description="bytes")
    cpu_used: float = Field(description="cores promised to live sandboxes")
    memory_used: int = Field(description="bytes promised to live sandboxes")
    sandboxes: int
    draining: bool = False
    offset: int = Field(0, description="milliseconds that the node finds its clock ahead of the broker's")


class Announce(Message):
    """plugin.announce: a process joins, drains or has left; again after each reconnection."""

    v: int = VERSION
    kind: str
    id: str
    state: Literal["joined", "draining", "left"]
    time: int = Field(description="unix ms")
    metadata: dict[str, str] = Field(default_factory=dict)


class PluginHeartbeat(Message):
    """plugin.heartbeat, 1 Hz."""

    v: int = VERSION
    kind: str
    id: str
    time: int = Field(description="unix ms")
    busy: int = Field(description="requests in hand")
    requests: int = Field(description="requests dealt with since it began")
    errors: int = Field(description="of those, answered with an error")


class Standing(StrEnum):
    """What the watcher thinks of a node."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    FAILED = "failed"


class NodeStatus(Message):
    """A node in the answer of sched.fleet; records of epochs up to `fenced` are failed."""

    node: str
    standing: Standing
    epoch: int
    fenced: int
    silent: float = Field(description="seconds, of the watcher's own connected time, without a heartbeat")
    held: bool = Field(
        default=False, description="due to be failed, but so many at once need the operator's word"
    )
    sandboxes: int = 0
    draining: bool = False
    offset: int = Field(0, description="milliseconds that its clock is ahead")
    reason: str = ""


class Fleet(Message):
    """Answer of sched.fleet, by node."""

    nodes: list[NodeStatus]


class FailNode(Request):
    """sched.fail: the operator says that the node is dead; its sandboxes fail now."""

    node: str
    reason: str = "the operator's word"


class DrainNode(Request):
    """node.drain: take nothing new; `destroy` what is there; `undo`: take work again."""

    destroy: bool = False
    undo: bool = False


class Drained(Message):
    """Answer of node.drain: how the node is now."""

    draining: bool
    sandboxes: int


class Event(Message):
    """event.<what>: the record after the change."""

    time: int
    record: Record


class Audit(Message):
    """audit.<writer>.<op>.<p>: who did what to which thing and how it ended (`ok` or an error code)."""

    time: int
    op: str
    principal: str
    subject: str
    target: str = ""
    outcome: str
    detail: str = ""
    trace: str = Field("", description="id of the caller's trace, if there is one")
