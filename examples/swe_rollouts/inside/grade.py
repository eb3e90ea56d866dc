"""Runs the wanted tests and tells what became of each. The one program of a clean grading sandbox.

Needs nothing but Python and the `lib` beside it. Two processes: this one, which no code under test enters,
starts the other, which imports the code under test, without rights (`user`), and takes down one line per
test over a pipe. What is printed at the end is this one's word on how the other ended, and those lines.

Request (JSON file, first argument): {"root", "tests": [arguments for pytest], "user": uid or null,
"timeout": seconds}. Answer (standard output): {"exit": code or null, "lines": [text], "log": text}.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve()
MAX_BYTES = 8 << 20
MAX_LOG = 4000


def main(path: Path) -> None:
    request = json.loads(path.read_text())
    user = request["user"]
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as home:
        if user is not None:
            os.chown(home, user, user)
        code, data = watch(path, request, log, home)
        log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_LOG))
        tail = log.read().decode(errors="replace")
    json.dump({"exit": code, "lines": data.decode(errors="replace").splitlines(), "log": tail}, sys.stdout)


def watch(path: Path, request: dict[str, Any], log: IO[bytes], home: str) -> tuple[int | None, bytes]:
    """Run the tests in the other process; its exit code (None: it overran its time) and its lines."""
    reader, writer = os.pipe()
    child = start(path, request, writer, log, home)
    os.close(writer)
    data = collect(child, reader, time.monotonic() + request["timeout"])
    os.close(reader)
    code = child.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    return code, data


def start(
    path: Path, request: dict[str, Any], writer: int, log: IO[bytes], home: str
) -> subprocess.Popen[bytes]:
    user = request["user"]
    return subprocess.Popen(
        [sys.executable, "-I", "-B", str(HERE), str(path), str(writer)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(writer,),
        start_new_session=True,
        cwd=request["root"],
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": home,
            "TMPDIR": home,
            "LANG": "C.UTF-8",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )


def collect(child: subprocess.Popen[bytes], reader: int, deadline: float) -> bytes:
    """What the child writes until it has ended; a grandchild that holds the pipe open does not count."""
    os.set_blocking(reader, False)
    data = bytearray()
    ended = False
    while not ended and time.monotonic() < deadline and len(data) < MAX_BYTES:
        ended = child.poll() is not None  # asked before the read: what it wrote last is then in the pipe
        select.select([reader], [], [], 0 if ended else 0.05)
        with contextlib.suppress(BlockingIOError):
            while part := os.read(reader, 1 << 16):
                data += part
            ended = ended or closed(child, deadline)
    return bytes(data)


def closed(child: subprocess.Popen[bytes], deadline: float) -> bool:
    """The pipe is closed: nothing more can come, so only the child's end is waited for."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(max(0.0, deadline - time.monotonic()))
    return True


class Reporter:
    """A pytest plugin: one JSON line per finished test, `[id, outcome, seconds]`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.phases: dict[str, list[Any]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.phases.setdefault(report.nodeid, []).append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        phases = self.phases.pop(nodeid, [])
        self.tell(nodeid, outcome(phases), sum(phase.duration for phase in phases))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tell(report.nodeid, "error", 0.0)

    def tell(self, test: str, result: str, seconds: float) -> None:
        os.write(self.descriptor, json.dumps([test, result, seconds]).encode() + b"\n")


def outcome(phases: list[Any]) -> str:
    """`passed` only if set-up, call and tear-down all ran and passed, and no mark changes the meaning."""
    if any(hasattr(phase, "wasxfail") for phase in phases):
        return "xfail"
    if any(phase.failed for phase in phases):
        return "failed"
    if any(phase.skipped for phase in phases):
        return "skipped"
    return "passed" if [phase.when for phase in phases] == ["setup", "call", "teardown"] else "error"


def run_tests(path: Path, descriptor: int) -> int:
    """The other process: pytest without the project's options, plugins, cache or warning filters."""
    request = json.loads(path.read_text())
    root = request["root"]
    sys.path[:0] = [str(HERE.parent / "lib"), root]
    import pytest  # noqa: PLC0415 - it lies in the grader's own lib, which is on the path only now

    options = [
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-W",
        "ignore",
        "-c",
        os.devnull,
        "--tb=line",
        "-q",
    ]
    where = ["--rootdir", root, "--confcutdir", root]
    return int(pytest.main([*options, *where, *request["tests"]], plugins=[Reporter(descriptor)]))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(run_tests(Path(sys.argv[1]), int(sys.argv[2])))
    main(Path(sys.argv[1]))
