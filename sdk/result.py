"""What a command did. A result, not an error, unless the caller asks with `check`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import orjson

from dsec.bus.errors import DsecError, Failure, InfraError
from dsec.bus.messages import Ended


class CommandFailed(DsecError):
    """The command did not end with exit code 0, and the caller asked for that (`check=True`)."""

    code = "command_failed"
    failure = Failure.SPEC

    def __init__(self, result: Result) -> None:
        super().__init__(f"the command {result.how}: {result.stderr[-500:].strip() or 'no error output'}")
        self.result = result
        if result.ended in {Ended.TIMEOUT, Ended.OOM, Ended.LOG_QUOTA}:
            self.failure = Failure.LIMIT


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended and what it printed.

    `exec` is its durable id, `log` its number in the sandbox's journal (the trajectory), `max_rss` in bytes;
    `truncated` tells that output past the quota was not captured; `limits` are those of the command's own, as
    applied.
    """

    exec: str
    log: int
    ended: Ended
    code: int | None
    signal: int | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    truncated: bool
    wall_ms: float
    cpu_ms: float
    max_rss: int
    limits: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, exec_id: str, log: int, end: bytes, stdout: bytes, stderr: bytes, *, truncated: bool = False
    ) -> Self:
        """From the metadata of an EXIT or INLINE frame (ExecEnd as JSON). Raises InfraError."""
        try:
            meta = orjson.loads(end)
            return cls(
                exec_id,
                log,
                Ended(meta["ended"]),
                meta.get("code"),
                meta.get("signal"),
                stdout,
                stderr,
                truncated or bool(meta.get("truncated", False)),
                meta["wall_ms"],
                meta["cpu_ms"],
                meta["max_rss"],
                meta.get("limits", {}),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InfraError.during("the exec's last frame", error) from error

    @property
    def stdout(self) -> str:
        """Standard output as UTF-8; what is not becomes U+FFFD."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error as UTF-8; what is not becomes U+FFFD."""
        return self.stderr_bytes.decode(errors="replace")

    @property
    def ok(self) -> bool:
        """Ended by itself with exit code 0."""
        return self.ended is Ended.EXIT and self.code == 0

    @property
    def how(self) -> str:
        """The end in words: `ended with exit code 1`, `ran into its timeout`…"""
        return {
            Ended.EXIT: f"ended with exit code {self.code}",
            Ended.SIGNAL: f"died of signal {self.signal}",
            Ended.TIMEOUT: "ran into its timeout",
            Ended.OOM: "ran out of memory",
            Ended.LOG_QUOTA: "printed more than its quota",
        }[self.ended]

    def check(self) -> Self:
        """Itself. Raises CommandFailed unless `ok`."""
        if not self.ok:
            raise CommandFailed(self)
        return self
