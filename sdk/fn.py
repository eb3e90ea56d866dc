"""Stateless calls: `client.call` and `client.judge`.

    result = await client.call(function, 1, 2)       # its source travels, JSON in and out
    result = await client.call("echo $1", language="sh", argv=["hi"])
    judged = await client.judge(source, [("1 2", "3")], language="c++")

What the code does is a result; only what the platform or the request did wrong is raised.
"""

from __future__ import annotations

import base64
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypedDict

from dsec.bus.caller import LONGEST, CallLimits, CallResult, CaseResult, Compiled, Raised, Verdict, parse_call
from dsec.bus.errors import Failure, NoSuchArtefact, SpecError
from dsec.bus.ids import check
from dsec.sdk.link import Link, new_operation
from dsec.sdk.spec_args import ImageArgs

FUTURE: Final = "from __future__ import annotations\n"
"""So that a function's annotations need not be there where only its text is."""
QUEUEING: Final = 20.0
"""Seconds that a call may take beside running, by default."""
Language = Literal["python", "sh", "bash", "c", "c++", "exec"]
Content = bytes | str
Case = tuple[Content, Content | None] | Mapping[str, Any]
"""Input and expected output (None: it only has to run), or fields of `bus.caller.Case`."""


class CallLimitArgs(TypedDict, total=False):
    """See `dsec.bus.caller.CallLimits`: seconds, cores, bytes, counts."""

    wall: float
    cpu_time: float | None
    cpu: float
    memory: int
    pids: int
    nofile: int
    tmp: int
    output: int


class CheckerArgs(TypedDict, total=False):
    """See `dsec.bus.caller.Checker`."""

    kind: Literal["exact", "tokens", "floats", "program"]
    tolerance: float
    source: str
    language: Literal["python", "sh", "bash", "c", "c++"]
    wall: float


class FnFailed(Exception):
    """The call did not return a value; `result` tells all."""

    def __init__(self, result: FnResult) -> None:
        raised = result.raised
        super().__init__(
            raised.traceback if raised else f"{result.ended}: {result.detail or result.text_err}"
        )
        self.result = result


@dataclass(frozen=True, slots=True)
class Artefact:
    """A file kept by its content on the node that made it; with `content` any node can do with it."""

    digest: str
    content: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class FnResult:
    """How a call ended, see `dsec.bus.caller.CallResult`. `failure` is `limit` where a limit ended it."""

    told: CallResult
    stdout: bytes
    stderr: bytes
    files: dict[str, bytes]
    artefacts: dict[str, Artefact]

    @property
    def ended(self) -> str:
        return self.told.ended

    @property
    def detail(self) -> str:
        return self.told.detail

    @property
    def failure(self) -> Failure | None:
        return self.told.failure

    @property
    def code(self) -> int | None:
        return self.told.code

    @property
    def signal(self) -> int | None:
        return self.told.signal

    @property
    def value(self) -> Any:
        """What the function returned; None too when it did not, see `returned`."""
        return self.told.value

    @property
    def returned(self) -> bool:
        return self.told.returned

    @property
    def raised(self) -> Raised | None:
        return self.told.raised

    @property
    def compiled(self) -> Compiled | None:
        return self.told.compiled

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.stdout.decode(errors="replace")

    @property
    def text_err(self) -> str:
        """Standard error as text."""
        return self.stderr.decode(errors="replace")

    def get(self) -> Any:
        """What the function returned. Raises FnFailed."""
        if not self.told.returned:
            raise FnFailed(self)
        return self.told.value


@dataclass(frozen=True, slots=True)
class Judged:
    """`verdict`: the first that is not AC, over `cases` in their order; CE with what the compiler said."""

    verdict: Verdict
    detail: str
    cases: tuple[CaseResult, ...]
    compiled: Compiled | None

    @property
    def passed(self) -> int:
        """How many cases were accepted."""
        return sum(one.verdict == "AC" for one in self.cases)


async def call(
    link: Link,
    what: Callable[..., Any] | str,
    args: Sequence[Any],
    *,
    files: Mapping[str, Content | Artefact] | None = None,
    executable: Iterable[str] = (),
    stdin: Content = b"",
    timeout: float | None = None,
    key: str | None = None,
    **spec: Any,
) -> FnResult:
    """See `Client.call`."""
    asked = {**_what(what, args, spec), "stdin": _encoded(stdin)}
    given, marked = dict(files or {}), frozenset(executable)
    op = check("operation", key) if key is not None else new_operation()
    try:
        told = await _ask(link, asked | {"files": _files(given, marked)}, timeout, op)
    except NoSuchArtefact:
        sent = {name: _whole(content) for name, content in given.items()}
        if sent == given:
            raise
        told = await _ask(link, asked | {"files": _files(sent, marked)}, timeout, new_operation())
    return _result(told)


async def judge(
    link: Link,
    source: str,
    cases: Sequence[Case],
    *,
    checker: str | CheckerArgs = "exact",
    all_cases: bool = True,
    timeout: float | None = None,
    key: str | None = None,
    **spec: Any,
) -> Judged:
    """See `Client.judge`."""
    judging = {
        "cases": [_case(one) for one in cases],
        "checker": {"kind": checker} if isinstance(checker, str) else dict(checker),
        "all_cases": all_cases,
    }
    asked = {"source": source, "judge": judging, **_given(spec)}
    op = check("operation", key) if key is not None else new_operation()
    told = await _ask(link, asked, timeout or LONGEST, op)
    return Judged(told.verdict or "RE", told.detail, told.cases, told.compiled)


async def _ask(link: Link, asked: dict[str, Any], timeout: float | None, op: str) -> CallResult:
    """The answer; an attempt lasts as long as all of them, since another node would do the call again."""
    parse_call(asked)  # refused here with the same error, before it travels
    wall = float(asked.get("limits", {}).get("wall") or CallLimits().wall)
    patience = min(timeout or wall + QUEUEING, LONGEST)
    subject = link.subject("fn", "gpu" if asked.get("gpu") else "call")
    answer = await link.call(subject, {"call": asked}, op=op, patience=patience, attempt=patience)
    return CallResult.model_validate(answer)


def _what(what: Callable[..., Any] | str, args: Sequence[Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The source, and which function of it is called. Raises SpecError."""
    given = _given(spec)
    if isinstance(what, str):
        return {"source": what, **({"args": list(args)} if args else {}), **given}
    return {"source": source_of(what), "entry": what.__name__, "args": list(args), **given}


def source_of(function: Callable[..., Any]) -> str:
    """The text of a function that needs nothing around it. Raises SpecError."""
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", "")
    if code is None or not name.isidentifier():
        raise SpecError("only a plain function can be sent: give its source as text", field="source")
    if code.co_freevars:
        around = ", ".join(code.co_freevars)
        raise SpecError(f"{name} uses {around} from around it: pass them as arguments", field="source")
    try:
        return FUTURE + textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise SpecError(f"the source of {name} cannot be found: give it as text", field="source") from error


def _given(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if value is not None}


def _encoded(content: Content) -> str:
    raw = content.encode() if isinstance(content, str) else content
    return base64.b64encode(raw).decode("ascii")


def _files(files: Mapping[str, Content | Artefact], executable: frozenset[str]) -> dict[str, dict[str, Any]]:
    return {name: {**_file(one), "executable": name in executable} for name, one in files.items()}


def _file(content: Content | Artefact) -> dict[str, str]:
    if isinstance(content, Artefact):
        return {"artefact": content.digest}
    return {"data": _encoded(content)}


def _whole(content: Content | Artefact) -> Content | Artefact:
    """The content itself, where it is known."""
    if isinstance(content, Artefact) and content.content is not None:
        return content.content
    return content


def _case(case: Case) -> dict[str, Any]:
    if isinstance(case, tuple):
        stdin, expected = case
        case = {"stdin": stdin, "expected": expected}
    bytes_of = {name: _encoded(case[name]) for name in ("stdin", "expected") if case.get(name) is not None}
    return {**case, **bytes_of}


def _result(told: CallResult) -> FnResult:
    files = {name: base64.b64decode(content) for name, content in told.files.items()}
    artefacts = {name: Artefact(digest, files.get(name)) for name, digest in told.artefacts.items()}
    return FnResult(told, base64.b64decode(told.stdout), base64.b64decode(told.stderr), files, artefacts)


class CallArgs(TypedDict, total=False):
    """What calls and judges take alike, see `dsec.bus.caller.CallSpec`."""

    language: Language
    argv: Sequence[str]
    env: Mapping[str, str]
    flags: Sequence[str]
    image: str | ImageArgs | None
    imports: Sequence[str]
    limits: CallLimitArgs
    gpu: Mapping[str, Any] | None
    timeout: float | None
    key: str | None
