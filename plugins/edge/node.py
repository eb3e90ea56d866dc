"""What the parts of one node share: its name, its directories, its backends and its table of sandboxes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from dsec.bus.audit import Auditor
from dsec.bus.chronus.guest import Guest
from dsec.bus.driver import Driver, Handle, Images, Info
from dsec.bus.files import write_private
from dsec.bus.messages import Record
from dsec.bus.nats.appender import Appender
from dsec.bus.transport import Bus
from dsec.plugins.edge.admission import Capacity
from dsec.plugins.edge.disk import room_for
from dsec.plugins.edge.journal import Journal
from dsec.plugins.edge.pipes import Scratch
from dsec.plugins.edge.running import Desk
from dsec.plugins.edge.sandboxes import Sandbox, Sandboxes
from dsec.plugins.edge.session import ended_sessions
from dsec.plugins.edge.tasks import Tasks
from dsec.plugins.edge.trajectory import Trajectory

_TMPFS = Path("/dev/shm")  # noqa: S108 - the spool must be memory; the directory below is private


@dataclass(slots=True)
class Node:
    """See the module. `home` is the edge's own directory, `spools` its directory on tmpfs."""

    name: str
    bus: Bus
    home: Path
    spools: Path
    drivers: dict[str, Driver]
    images: Images
    journal: Journal
    appender: Appender
    tasks: Tasks
    scratch: Scratch
    sandboxes: Sandboxes
    capacity: Capacity
    draining: bool = False
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while this life of the node counts: requests are served and heartbeats told (`fencing`)."""
    fenced: int = 0
    """Lives of this node up to this one were declared failed, and what is of them is lost."""
    clock_offset: int = 0
    """Milliseconds that this machine's clock is ahead of the broker's."""
    creating: dict[str, asyncio.Task[bytes]] = field(default_factory=dict)
    coming: dict[str, Record] = field(default_factory=dict)
    """Records of what batches were promised and is not created yet, or could not be."""
    auditor: Auditor = field(init=False)

    def __post_init__(self) -> None:
        self.auditor = Auditor(self.appender, "edge")

    def backends(self) -> dict[str, Info]:
        """What the node's drivers tell of themselves."""
        return {name: driver.info() for name, driver in self.drivers.items()}

    def disk_free(self) -> int:
        """Bytes free where the node's directories lie."""
        return shutil.disk_usage(self.home).free

    def home_of(self, sandbox: str) -> Path:
        """The sandbox's own directory: its trajectory and secrets."""
        return self.home / "sandboxes" / sandbox

    def spools_of(self, sandbox: str) -> Path:
        return self.spools / sandbox

    def hold(self, record: Record, handle: Handle, guest: Guest | None) -> Sandbox:
        """The sandbox as the table has it, with the directories it needs. Raises DiskFull."""
        home, spools = self.home_of(record.sandbox), self.spools_of(record.sandbox)
        with room_for("a sandbox's directories"):
            for directory in (home, spools):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            trajectory = Trajectory(home / "trajectory.jsonl")
        env = {**record.spec.env, **self._secrets(record.sandbox)}
        driver = self.drivers[handle.driver]
        sandbox = Sandbox(record, handle, driver, guest, home, spools, trajectory, env)
        sandbox.desk = Desk(self.tasks, self.scratch, trajectory, sandbox.oom_killed)
        sandbox.sessions = ended_sessions(trajectory.entries)
        sandbox.logs = {entry.exec: entry.log for entry in trajectory.entries.values()}
        return sandbox

    def keep_secrets(self, sandbox: str, secrets: Mapping[str, str]) -> None:
        """For the sandbox's commands, also after a restart of the node; deleted with the sandbox."""
        if secrets:
            with room_for("a sandbox's secrets"):
                write_private(self.home_of(sandbox) / "secrets.json", orjson.dumps(dict(secrets)).decode())

    def _secrets(self, sandbox: str) -> dict[str, str]:
        path = self.home_of(sandbox) / "secrets.json"
        return dict(orjson.loads(path.read_bytes())) if path.exists() else {}

    def forget(self, sandbox: str) -> None:
        """Delete the sandbox's directories; repeatable."""
        shutil.rmtree(self.home_of(sandbox), ignore_errors=True)
        shutil.rmtree(self.spools_of(sandbox), ignore_errors=True)


def spools_for(home: Path) -> Path:
    """The node's directory on tmpfs: the same for each process of the node, and its own."""
    name = hashlib.blake2s(os.fsencode(home.resolve()), digest_size=8).hexdigest()
    return _TMPFS / f"dsec-{name}"
