"""Every error that crosses a boundary: one tree, a stable code each, named by what the caller should do.

The class of a failure (`Failure`) tells a trainer what to do with the rollout; the code tells a program what
happened; the message tells a person what to do. Errors travel as `ErrorBody` and come back as the same class.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Self


class Failure(StrEnum):
    """What a trainer may conclude: `infra` is retried elsewhere and earns no reward."""

    INFRA = "infra"
    LIMIT = "limit"
    POLICY = "policy"
    SPEC = "spec"
    GONE = "gone"


_LONGEST = 1000
"""Characters of a message: errors quote what was sent, and must fit an answer and the audit trail."""


class DsecError(Exception):
    """Base of all typed errors. `field` names the offending input, `retry_after` is in seconds."""

    code: ClassVar[str] = "internal"
    failure: Failure = Failure.INFRA

    def __init__(self, message: str, *, field: str | None = None, retry_after: float | None = None) -> None:
        self.message = _cut(message)
        super().__init__(self.message)
        self.field = None if field is None else _cut(field)
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The error as it stands in a reply: `code`, `failure`, `message`, `field`, `retry_after`."""
        return {
            "code": self.code,
            "failure": self.failure.value,
            "message": self.message,
            "field": self.field,
            "retry_after": self.retry_after,
        }

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> DsecError:
        """The error of the class that its code names; an unknown code keeps its failure class."""
        kind = BY_CODE.get(str(body.get("code")), DsecError)
        error = kind(
            str(body.get("message", "")), field=body.get("field"), retry_after=body.get("retry_after")
        )
        if kind is DsecError and body.get("failure") in set(Failure):
            error.failure = Failure(body["failure"])
        error.read_more(body)
        return error

    def read_more(self, body: dict[str, Any]) -> None:
        """What this class alone has in its body."""

    @classmethod
    def during(cls, what: str, cause: BaseException) -> Self:
        """This error with `cause` told in its message; use with `raise … from cause`."""
        return cls(f"{what}: {type(cause).__name__}: {cause}")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class SpecError(DsecError):
    """The request is wrong; sending it again cannot help."""

    code = "bad_request"
    failure = Failure.SPEC


class UnknownField(SpecError):
    """A user's spec has a field that does not exist."""

    code = "unknown_field"


class BadId(SpecError):
    """An id that is not of its kind, or not safe as a subject token."""

    code = "bad_id"


class Unsupported(SpecError):
    """A limit or option that this backend cannot enforce; it is refused, never ignored."""

    code = "unsupported"


class NoSuchImage(SpecError):
    """No layer of that name is in the node's catalog."""

    code = "no_such_image"


class NoSuchFile(SpecError):
    """No such path inside the sandbox, or not of the kind that was asked for."""

    code = "no_such_file"


class NoSuchProgram(SpecError):
    """The command could not be executed inside: not found, not executable, or no such user or cwd."""

    code = "no_such_program"


class TooLarge(SpecError):
    """The message is over the broker's payload limit; split it."""

    code = "too_large"


class WrongPlace(SpecError):
    """The twin was called in an event loop's thread, or in a process that was forked since it was opened."""

    code = "wrong_place"


class Conflict(SpecError):
    """The idempotency key was used before with another request."""

    code = "conflict"


class SessionBusy(SpecError):
    """A command runs in the session: wait for its end, or signal it."""

    code = "session_busy"


class UnsafeArchive(SpecError):
    """An archive entry that leaves its directory, or is a hard link or a device."""

    code = "unsafe_archive"


class PolicyError(DsecError):
    """Not allowed; the attempt is audited."""

    code = "denied"
    failure = Failure.POLICY


class Unauthenticated(PolicyError):
    """The broker refused the credentials."""

    code = "unauthenticated"


class Untrusted(PolicyError):
    """The broker did not prove who it is: another CA, another name, or no TLS where it was asked for."""

    code = "untrusted"


class ForgedReply(PolicyError):
    """The reply subject does not lie under the caller's own inbox prefix."""

    code = "forged_reply"


class GoneError(DsecError):
    """What was named does not exist any more, or never did (another project's things look just so)."""

    code = "gone"
    failure = Failure.GONE


class NoSuchSandbox(GoneError):
    """No sandbox of that id in this project."""

    code = "no_such_sandbox"


class NoSuchExec(GoneError):
    """No exec of that id in this sandbox, or its output has expired."""

    code = "no_such_exec"


class SessionEnded(GoneError):
    """The session's shell has ended, with `exit_code` or of `signal`: nothing runs in it any more."""

    code = "session_ended"
    exit_code: int | None = None
    signal: int | None = None

    def body(self) -> dict[str, Any]:
        return {**super().body(), "exit_code": self.exit_code, "signal": self.signal}

    def read_more(self, body: dict[str, Any]) -> None:
        self.exit_code, self.signal = body.get("exit_code"), body.get("signal")


class PortClosed(GoneError):
    """Nothing listens on that port inside, or nobody accepts."""

    code = "port_closed"


class NoSuchConnection(GoneError):
    """The connection to a port inside has ended: closed, reset, long unused, or its node was restarted."""

    code = "no_such_connection"


class NoSuchArtefact(GoneError):
    """The node that does the call does not have that artefact; send the content."""

    code = "no_such_artefact"


class Cancelled(GoneError):
    """It was to be created, and the batch was cancelled before it was."""

    code = "cancelled"


class LimitError(DsecError):
    """A limit of the sandbox or the project was hit."""

    code = "limit"
    failure = Failure.LIMIT


class AgentCrippled(LimitError):
    """The sandbox ended or starved its own platform agent."""

    code = "agent_crippled"


class QuotaExceeded(LimitError):
    """A quota of the project, or of one above it, is used up; `field` names it, the message tells whose."""

    code = "quota_exceeded"


class InfraError(DsecError):
    """The platform failed, not the rollout: retry, elsewhere if need be, and give no reward."""

    code = "infra"


class BrokerDown(InfraError):
    """No connection to the broker."""

    code = "broker_down"


class NodeLost(InfraError):
    """The node does not answer, or it failed with the sandbox on it."""

    code = "node_lost"


class NoCapacity(InfraError):
    """No healthy node can take the sandbox now."""

    code = "no_capacity"


class Overloaded(InfraError):
    """Shed before any work was done; try again after `retry_after` seconds."""

    code = "overloaded"


class DeadlineExceeded(InfraError):
    """The deadline of the request passed; a mutating call may be repeated with the same key."""

    code = "deadline_exceeded"


class MissingTool(InfraError):
    """A program, kernel feature or permission that the node needs is not there; `dsec doctor` tells more."""

    code = "missing_tool"


class AlreadyRunning(InfraError):
    """Another process serves this home, or this node."""

    code = "already_running"


class DiskFull(InfraError):
    """The node's disk is full."""

    code = "disk_full"


def _tree(root: type[DsecError]) -> dict[str, type[DsecError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


BY_CODE: dict[str, type[DsecError]] = _tree(DsecError)
"""Every stable code and its class: the enumerated list of SPECIFICATION.md."""
