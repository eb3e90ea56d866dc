"""The trajectory of one sandbox: every exec in order, appended as lines of JSON.

One write(2) per line and no sync: a line survives kill -9 of the node's process, not a power loss, which the
commands do not survive either. A line that a full disk cuts off is taken back, one torn by a crash ignored.
The line's number of its exec is `log` in the exec's frames.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from dsec.bus.errors import DiskFull
from dsec.plugins.edge.disk import append_whole


@dataclass(slots=True)
class Entry:
    """One exec; `ended` is empty while it runs. Times are unix seconds."""

    log: int
    exec: str
    argv: list[str]
    started: float
    timeout: float | None
    quota: int
    detach: bool = False
    stdin_open: bool = False
    terminal: bool = False
    limits: dict[str, Any] = field(default_factory=dict)
    """As applied, of those that it has of its own."""
    shell: str = ""
    """Of a session: what it runs."""
    session: str = ""
    """Of a command in a session: the exec of that."""
    begun: bool = False
    """The session was given it."""
    ended: dict[str, Any] = field(default_factory=dict)


class Trajectory:
    """Open for appending. Raises DiskFull."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries, self._last = _read(path)
        """The execs that a former process journalled; new ones are not added."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if _torn(path):
            append_whole(self._file, b"\n", "the journal of commands")

    def take_number(self) -> int:
        """The number of the next exec, counted from 1."""
        self._last += 1
        return self._last

    def start(self, entry: Entry) -> None:
        """Before the command is forked."""
        self._append(
            {
                "log": entry.log,
                "exec": entry.exec,
                "argv": entry.argv,
                "started": entry.started,
                "timeout": entry.timeout,
                "quota": entry.quota,
                "detach": entry.detach,
                "stdin_open": entry.stdin_open,
                "terminal": entry.terminal,
                "limits": entry.limits,
                "shell": entry.shell,
                "session": entry.session,
            }
        )

    def begin(self, exec_: str) -> None:
        """The session has been given it."""
        with contextlib.suppress(DiskFull):
            self._append({"exec": exec_, "begun": True})

    def failed(self, exec_: str) -> None:
        """It could not be started, and may be tried again under the same id; a restart finds that, too."""
        with contextlib.suppress(DiskFull):
            self._append({"exec": exec_, "failed": True})

    def end(self, exec_: str, ended: bytes) -> None:
        """After its last record is stored, which counts; `ended` is an ExecEnd as JSON."""
        with contextlib.suppress(DiskFull):
            self._append({"exec": exec_, "ended": orjson.Fragment(ended)})

    def listed(self) -> list[Entry]:
        """All execs, in the order of their start; read anew, which may take a while."""
        return sorted(_read(self._path)[0].values(), key=lambda entry: entry.log)

    def close(self) -> None:
        """Repeatable."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, line: dict[str, Any]) -> None:
        if self._file >= 0:
            append_whole(
                self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE), "the journal of commands"
            )


def _read(path: Path) -> tuple[dict[str, Entry], int]:
    """The execs by id, and the highest number that was given."""
    entries: dict[str, Entry] = {}
    last = 0
    for raw in path.read_bytes().splitlines() if path.exists() else []:
        try:
            line = orjson.loads(raw)
        except orjson.JSONDecodeError:
            continue
        if not isinstance(line, dict) or "exec" not in line:
            continue
        if "log" in line:
            entries[line["exec"]] = entry = Entry(**line)
            last = max(last, entry.log)
        elif "failed" in line:
            entries.pop(line["exec"], None)
        elif "begun" in line and line["exec"] in entries:
            entries[line["exec"]].begun = True
        elif line["exec"] in entries:
            entries[line["exec"]].ended = line["ended"]
    return entries, last


def _torn(path: Path) -> bool:
    data = path.read_bytes()
    return bool(data) and not data.endswith(b"\n")
