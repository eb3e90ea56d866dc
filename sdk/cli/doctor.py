"""`dsec doctor`: what this machine can do, and why not. Exit code 1 when it cannot be a node.

Backends and the image store answer for themselves (`check` of their contracts).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import inspect
import os
import platform
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from dsec.bus.chronus import build
from dsec.bus.driver import Driver, Images
from dsec.bus.errors import BrokerDown, DiskFull, DsecError, MissingTool
from dsec.bus.home import Home, default_node
from dsec.bus.host import DRIVERS, IMAGES, load
from dsec.bus.nats import broker
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.sdk.cli.output import emit, json_option, size, table, working

NEEDED_PACKAGES: Final = ("nats-py", "nkeys", "orjson", "pydantic", "rich")
CLIENT_PYTHON: Final = (3, 11)
DISK_LEAST: Final = 2 << 30
"""Bytes that a node's home needs free, for upper layers and the streams."""

Need = Literal["client", "node", "option"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`need`: without it there is no client, no node, or only an option less."""

    name: str
    need: Need
    ok: bool
    detail: str


def register(subparsers: Any) -> None:
    """Add the command `doctor`."""
    parser = subparsers.add_parser("doctor", help="what this machine can do", description=__doc__)
    parser.add_argument("--home", type=Path, default=Home.default().path, help="default: %(default)s")
    parser.add_argument("--node", default=default_node(), help="default: %(default)s")
    json_option(parser)
    parser.set_defaults(handler=doctor)


async def doctor(args: argparse.Namespace) -> int:
    """Tell every finding; 1 when the machine cannot be a node."""
    with working("examining this machine"):
        findings = [finding async for finding in examine(Home(args.home.absolute()), args.node)]
    able = able_of(findings)
    if args.json:
        emit({**able, "findings": [asdict(finding) for finding in findings]})
    else:
        _show(findings)
        for role, can in able.items():
            sys.stdout.write(f"{role}: {'yes' if can else 'no'}\n")
    return 0 if able["node"] else 1


def able_of(findings: list[Finding]) -> dict[str, bool]:
    """Whether the machine can be a client, and a node: everything needed, and one backend at least."""
    lacking = {finding.need for finding in findings if not finding.ok}
    backends = [finding.ok for finding in findings if finding.name.startswith("backend ")]
    client = "client" not in lacking
    return {"client": client, "node": client and "node" not in lacking and any(backends)}


async def examine(home: Home, node: str) -> AsyncIterator[Finding]:
    """Every finding, as it is made."""
    yield await _look("python", "client", _python)
    for name in NEEDED_PACKAGES:
        yield await _look(f"package {name}", "client", functools.partial(_package, name))
    yield await _look("package uvloop", "option", functools.partial(_package, "uvloop"))
    yield await _look("nats-server", "node", lambda: str(broker.binary()))
    yield await _look("chronus", "node", lambda: str(build.binary()))
    yield await _look("root", "node", _root)
    yield await _look("kernel", "node", lambda: f"{platform.system()} {platform.release()}")
    yield await _look("cgroups", "node", _cgroups)
    for entry in importlib.metadata.entry_points(group=IMAGES):
        yield await _look(f"images {entry.name}", "node", _checking(IMAGES, entry.name, home.images(node)))
    for entry in importlib.metadata.entry_points(group=DRIVERS):
        where = home.driver(node, entry.name)
        yield await _look(f"backend {entry.name}", "option", _checking(DRIVERS, entry.name, where))
    yield await _look("lxcfs", "option", _lxcfs)
    yield await _look("disk", "node", lambda: _disk(home.path))
    yield await _look("platform", "option", lambda: _reachable(home))


async def _look(name: str, need: Need, look: Callable[[], str | Awaitable[str]]) -> Finding:
    try:
        told = look()
        return Finding(name, need, ok=True, detail=await told if inspect.isawaitable(told) else told)
    except DsecError as error:
        return Finding(name, need, ok=False, detail=error.message)
    except OSError as error:
        return Finding(name, need, ok=False, detail=str(error))


def _python() -> str:
    if sys.version_info < CLIENT_PYTHON:
        raise MissingTool(f"Python {platform.python_version()} is too old: 3.11 or later is needed")
    return platform.python_version()


def _package(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise MissingTool(f"pip install {name}") from None


def _root() -> str:
    if os.geteuid() != 0:
        raise MissingTool("a node runs as root: it mounts, makes namespaces and cgroups")
    return "uid 0"


def _cgroups() -> str:
    """Which layout there is: unified, or version 1 with a version 2 hierarchy beside it."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    kinds = {line.partition(" - ")[2].split(" ")[0] for line in lines} & {"cgroup", "cgroup2"}
    if "cgroup2" not in kinds:
        raise MissingTool("no cgroup version 2 hierarchy is mounted: mount -t cgroup2 none /sys/fs/cgroup")
    return "hybrid (version 1 controllers beside version 2)" if "cgroup" in kinds else "unified"


def _checking(group: str, name: str, home: Path) -> Callable[[], Awaitable[str]]:
    async def check() -> str:
        part: Driver | Images = load(group, name)(home)
        try:
            await part.check()
        finally:
            await part.close()
        return "works"

    return check


def _lxcfs() -> str:
    """Without it sandboxes see the machine's memory, load and uptime instead of their own."""
    program = shutil.which("lxcfs")
    if program is None:
        raise MissingTool("sandboxes see the machine's memory, load and uptime: apt-get install lxcfs")
    if not Path("/dev/fuse").exists():
        raise MissingTool("sandboxes see the machine's memory, load and uptime: modprobe fuse")
    return program


def _disk(home: Path) -> str:
    existing = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < DISK_LEAST:
        raise DiskFull(f"{size(free)} free at {existing}; a node needs {size(DISK_LEAST)}")
    return f"{size(free)} free at {existing}"


async def _reachable(home: Home) -> str:
    ready = home.ready()
    with contextlib.suppress(KeyError):
        who = Credentials.load(Path(ready["credentials"]))
        async with Wire.connect(ready["url"], who, "doctor", timeout=3.0):
            return f"answers on {ready['url']}"
    raise BrokerDown(f"{home.path} tells no URL and credentials")


def _show(findings: list[Finding]) -> None:
    marks = {True: "ok", False: "missing"}
    table(
        ("check", "needed for", "", "what"),
        ((one.name, one.need, marks[one.ok], one.detail) for one in findings),
    )
