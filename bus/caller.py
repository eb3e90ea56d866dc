"""The contract of stateless calls, `fn.call`: what is asked, what comes of it, and who does it.

A `Caller` is not a `Driver`: nothing outlives a call, so there is no record, no handle and no recovery. A
call has no effect but its answer, its artefacts and one audit event; therefore it may be repeated by anybody
at any time. What the code of a call does is a result, never an error. `sdk.testing.calls` is the suite for
it.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from dsec.bus.driver import Images
from dsec.bus.errors import Failure
from dsec.bus.messages import Message, Request, VariableName
from dsec.bus.spec import GIB, KIB, MIB, Image, NoNul, Strict, refusal

MAX_FILES: Final = 64
MAX_CASES: Final = 1000
MAX_WALL: Final = 120.0
LONGEST: Final = 145.0
"""Seconds from a call's request to its answer: a node may answer for no longer."""
MAX_BYTES: Final = 640 * KIB
"""Of a call with everything in it, and of an answer: what one message of the broker carries, as base64."""

FileName = Annotated[str, StringConstraints(pattern=r"^[^\x00/]+(/[^\x00/]+)*$", max_length=255)]
"""Relative to the call's working directory."""
Module = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", max_length=128)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""sha256 of an artefact's content."""
Language = Literal["python", "sh", "bash", "c", "c++", "exec"]
Verdict = Literal["AC", "WA", "TLE", "MLE", "RE", "OLE", "CE"]


class CallLimits(Strict):
    """Of the call, or of each case of a judge. `wall` and `cpu_time` in seconds, the rest bytes and
    counts.
    """

    wall: float = Field(10.0, gt=0, le=MAX_WALL)
    cpu_time: float | None = Field(None, gt=0, le=600, description="of all processes together")
    cpu: float = Field(1.0, gt=0, le=64, description="cores")
    memory: int = Field(256 * MIB, ge=16 * MIB, le=64 * GIB, description="files in /tmp included")
    pids: int = Field(64, ge=4, le=4096)
    nofile: int = Field(256, ge=16, le=65_536)
    tmp: int = Field(64 * MIB, ge=64 * KIB, le=16 * GIB, description="of /tmp, the only place to write")
    output: int = Field(64 * KIB, ge=1, le=512 * KIB, description="of standard output, and of error")


class FileIn(Strict):
    """A file that the call finds: its content in base64, or an artefact of an earlier call."""

    data: str | None = None
    artefact: Digest | None = None
    executable: bool = False

    @model_validator(mode="after")
    def _one(self) -> FileIn:
        if (self.data is None) == (self.artefact is None):
            raise ValueError("either data or artefact")
        return self


class Gpu(Strict):
    """`exclusive`: a whole device for the call; `shared`: beside others, within `memory` bytes of it."""

    mode: Literal["exclusive", "shared"] = "exclusive"
    memory: int | None = Field(None, ge=MIB)


class Case(Strict):
    """One test of a program. Bytes are base64; times in seconds, over `CallLimits` of the call."""

    stdin: str = ""
    expected: str | None = Field(None, description="base64; None: only whether it runs")
    wall: float | None = Field(None, gt=0, le=MAX_WALL)
    cpu_time: float | None = Field(None, gt=0, le=600)
    memory: int | None = Field(None, ge=16 * MIB, le=64 * GIB)


class Checker(Strict):
    """How an output is compared. `exact`: byte for byte, but for white space at the ends of lines and of the
    whole; `tokens`: words; `floats`: words, numbers within `tolerance`, absolute or relative.

    `program`: its exit code decides, 42 accepts and 43 does not; it finds `input`, `output` and `expected` in
    its working directory, and runs in a box of its own.
    """

    kind: Literal["exact", "tokens", "floats", "program"] = "exact"
    tolerance: float = Field(1e-9, ge=0, le=1)
    source: str = Field("", max_length=256 * KIB)
    language: Literal["python", "sh", "bash", "c", "c++"] = "python"
    wall: float = Field(10.0, gt=0, le=60)


class Judge(Strict):
    cases: tuple[Case, ...] = Field(min_length=1, max_length=MAX_CASES)
    checker: Checker = Checker()
    all_cases: bool = Field(default=True, description="False: the first case that fails ends it")


class CallSpec(Strict):
    """One call. With `entry` (Python): that function of `source` is called with `args` and `kwargs`, JSON in
    and out; otherwise `source` is run as a program with `argv` and `stdin` (base64).

    `exec` runs the file `source` names: an executable among `files`, or a program of the image.
    `imports`: libraries that its worker has imported already (Python). `flags`: of the compiler.
    """

    language: Language = "python"
    source: str = Field(min_length=1, max_length=512 * KIB)
    entry: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$")] | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = Field(default_factory=dict)
    argv: tuple[NoNul, ...] = Field((), max_length=512)
    stdin: str = ""
    env: dict[VariableName, NoNul] = Field(default_factory=dict, max_length=256)
    files: dict[FileName, FileIn] = Field(default_factory=dict, max_length=MAX_FILES)
    outputs: tuple[FileName, ...] = Field(
        (), max_length=MAX_FILES, description="files that are brought back, if they are there"
    )
    keep: tuple[FileName, ...] = Field((), max_length=MAX_FILES, description="files that become artefacts")
    flags: tuple[NoNul, ...] = Field((), max_length=64)
    image: Image | None = None
    imports: tuple[Module, ...] = Field((), max_length=32)
    limits: CallLimits = CallLimits()
    gpu: Gpu | None = None
    judge: Judge | None = None


class FnCall(Request):
    """fn.call. `call` is parsed strictly by the node (`CallSpec`); answered by `CallResult`."""

    call: dict[str, Any]


def parse_call(data: dict[str, Any]) -> CallSpec:
    """`data` as a CallSpec. Raises UnknownField or SpecError naming the field by its dotted path."""
    try:
        return CallSpec.model_validate(data)
    except ValidationError as error:
        raise refusal(error) from None


class Raised(Message):
    """An exception that the call's function raised."""

    type: str
    message: str
    traceback: str


class Compiled(Message):
    """What the compiler said; `cached`: an earlier call had compiled the same."""

    ok: bool
    log: str = ""
    cached: bool = False
    wall_ms: float = 0.0


class CaseResult(Message):
    """One judged case; `detail` says why, for people. `memory` is the most bytes at a time, where it is
    told.
    """

    verdict: Verdict
    detail: str = ""
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    memory: int | None = None
    code: int | None = None
    signal: int | None = None


class CallResult(Message):
    """How a call ended. `ended`: exit, signal, timeout (wall or CPU time), oom, output; compile (it did not).

    `failure` is `limit` where a limit ended it, else None: what code does is no failure of the platform.
    `value`: what the function returned, if `returned`. Bytes are base64. `warm`: no worker had to be started.
    """

    ended: Literal["exit", "signal", "timeout", "oom", "output", "compile"]
    failure: Failure | None = None
    detail: str = ""
    code: int | None = None
    signal: int | None = None
    returned: bool = False
    value: Any = None
    raised: Raised | None = None
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    memory: int | None = None
    files: dict[str, str] = Field(default_factory=dict)
    artefacts: dict[str, str] = Field(default_factory=dict, description="name -> sha256")
    compiled: Compiled | None = None
    verdict: Verdict | None = Field(None, description="of a judge: the first that is not AC")
    cases: tuple[CaseResult, ...] = ()
    warm: bool = True
    node: str = ""


class Caller(Protocol):
    """Stateless calls on one node, made by `running(home, images, node)`."""

    @classmethod
    def running(cls, home: Path, images: Images, node: str) -> AbstractAsyncContextManager[Self]:
        """Takes calls while the block runs; then nothing of any call is left.

        Raises MissingTool telling what to install or enable.
        """
        ...

    async def call(self, project: str, spec: CallSpec, deadline: float) -> CallResult:
        """Do one call for `project`; nothing of it is left on return but what it `keep`s, nor when this
        raises.

        `deadline` (unix seconds): nobody wants the result later. May be repeated.
        Raises SpecError, NoSuchImage, NoSuchArtefact, Unsupported,
        TooLarge, NoCapacity, Overloaded, DeadlineExceeded, InfraError.
        """
        ...
