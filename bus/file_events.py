"""Bodies of `file.watch`: what is asked, and events of files (docs/adr/0030-file-watch.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dsec.bus.ids import OperationId
from dsec.bus.messages import Message, Position, Request


class WatchFiles(Request):
    """file.watch: without `cursor` it opens the watch that the caller names `watch`, of what lies at `path`.

    With it, a long poll for the events from number `cursor` on, all before which have arrived; `close` ends
    the watch. Answered with Watched."""

    watch: OperationId
    path: str = Field(min_length=1, max_length=4095)
    recursive: bool = False
    cursor: Position | None = None
    close: bool = False


FileChange = Literal["created", "modified", "written", "deleted", "moved", "overflow", "restarted"]


class FileEvent(Message):
    """A change below a watched path. `directory`: of what changed.

    `written`: a file that was open for writing was closed; `overflow`: the node lost events; `restarted`: the
    watch began anew, and events may be missing. After these two, look at what is there."""

    kind: FileChange
    path: str
    to: str | None = Field(None, description="moved: its new path")
    directory: bool = False


class Watched(Message):
    """Events from the asked number on; none: nothing has happened yet."""

    events: list[FileEvent] = Field(default_factory=list)
    ended: bool = Field(default=False, description="the watched path itself is gone: nothing follows")
    gone: bool = Field(default=False, description="no such watch (any more): open it again")
