"""Bodies of exec.list and its answer: the commands of a sandbox."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dsec.bus.messages import ExecEnd, Message, Position, Request


class ListExecs(Request):
    """exec.list: the commands of a sandbox in the order of their start, from `after` (a log number) on."""

    after: Position = 0
    running: bool = Field(default=False, description="only those that have not ended")
    limit: int = Field(500, ge=1, le=1000)


class ExecInfo(Message):
    """A command in the answer to exec.list. Without an `end` it runs, or its end is not stored yet."""

    exec: str
    log: int = Field(description="its number in the sandbox's journal")
    argv: list[str] = Field(description="cut where it is long")
    started: int = Field(description="unix ms")
    kind: Literal["command", "session", "terminal"] = "command"
    session: str | None = Field(None, description="the session that it is a command of")
    timeout: float | None = None
    detach: bool = False
    limits: dict[str, float] = Field(default_factory=dict, description="of its own, as applied")
    end: ExecEnd | None = None


class ExecList(Message):
    """Answer of exec.list: a page."""

    execs: list[ExecInfo]
    more: bool
