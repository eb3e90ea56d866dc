"""What every start of a command needs: room, a line in the journal, a log, and the environment."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dsec.bus import subjects
from dsec.bus.chronus.guest import Command
from dsec.bus.chronus.limits import CONTROLLERS
from dsec.bus.errors import DiskFull, DsecError, LimitError, Unsupported
from dsec.bus.messages import StartExec
from dsec.bus.spec import Limits
from dsec.plugins.edge.admission import DEFAULT_LOG_BYTES
from dsec.plugins.edge.budget import AHEAD
from dsec.plugins.edge.execlog import ExecLog
from dsec.plugins.edge.figures import figures_of
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.sandboxes import Sandbox
from dsec.plugins.edge.trajectory import Entry

ROOM: Final = 2 * AHEAD
ROOM_FILES: Final = 8
"""What tmpfs must have free for a command to be started: bytes, and files."""
TERM: Final = "xterm-256color"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def entry_of(sandbox: Sandbox, exec_: str, request: StartExec) -> Entry:
    """Its line in the trajectory. Raises LimitError."""
    quota = quota_of(request.log_bytes, sandbox.record.applied.log_bytes or DEFAULT_LOG_BYTES)
    return Entry(
        log=sandbox.trajectory.take_number(),
        exec=exec_,
        argv=list(request.argv),
        started=time.time(),
        timeout=request.timeout,
        quota=quota,
        detach=request.detach,
        stdin_open=request.stdin_open or request.terminal is not None,
        terminal=request.terminal is not None,
        session=request.session or "",
        limits={} if request.limits is None else limits_of(sandbox, request.limits),
    )


@contextlib.contextmanager
def journalled(sandbox: Sandbox, entry: Entry) -> Iterator[None]:
    """Begun within the block, or to be tried again under the same id. Raises DiskFull."""
    sandbox.trajectory.start(entry)
    sandbox.logs[entry.exec] = entry.log
    try:
        yield
    except DsecError:
        sandbox.trajectory.failed(entry.exec)
        sandbox.logs.pop(entry.exec, None)
        raise


def command_of(
    sandbox: Sandbox, request: StartExec, argv: tuple[str, ...], *, stdin: bool = False, session: bool = False
) -> Command:
    """What is asked for, on top of what the sandbox has for all its commands."""
    size = request.terminal
    return Command(
        argv=argv,
        cwd=request.cwd or "/",
        env={"PATH": PATH, **({"TERM": TERM} if size else {}), **sandbox.env, **request.env},
        user=request.user or sandbox.record.spec.user,
        stdin=stdin,
        session=session,
        terminal=(size.rows, size.columns) if size else None,
        limits=request.limits,
    )


def log_of(node: Node, sandbox: Sandbox, entry: Entry) -> ExecLog:
    """Where its frames go."""
    subject = subjects.exec_stream(sandbox.record.project, sandbox.id, entry.exec)
    return ExecLog(node.appender, subject, entry.log, figures=figures_of(node))


def limits_of(sandbox: Sandbox, asked: Limits) -> dict[str, Any]:
    """What the command gets, below what its sandbox has. Raises Unsupported, LimitError naming the field."""
    offered, applied = sandbox.driver.info().limits, sandbox.record.applied
    for name, value in (wanted := asked.model_dump(exclude_none=True)).items():
        if name not in CONTROLLERS or name not in offered:
            raise Unsupported(f"a command can have no limit of {name} of its own", field=f"limits.{name}")
        most = getattr(applied, name)
        if most is not None and value > most:
            raise LimitError(f"the sandbox itself has {most} {name}", field=f"limits.{name}")
    return wanted


def room_to_run(spools: Path, more: int) -> None:
    """Raises DiskFull, before anything is done, when tmpfs has no room for a command's output and input."""
    tmpfs = os.statvfs(spools)
    if tmpfs.f_bavail * tmpfs.f_frsize < ROOM + more or (tmpfs.f_files and tmpfs.f_favail < ROOM_FILES):
        raise DiskFull(f"the node's tmpfs is full: free some of {spools.parent.parent}")


def quota_of(asked: int | None, allowed: int) -> int:
    """Bytes of output to capture. Raises LimitError when more is asked for than the sandbox has."""
    if asked is not None and asked > allowed:
        raise LimitError(f"the sandbox allows {allowed} bytes of output per command", field="log_bytes")
    return asked or allowed
