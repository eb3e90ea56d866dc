"""Where everything of one installation lies: `--home DIR`, `$DSEC_HOME`, or /var/lib/dsec.

| path | what |
|---|---|
| `broker/` | configuration, port and streams of the embedded broker |
| `credentials/` | identities, mode 0600 |
| `parts/<part>/` | files of a control-plane part |
| `nodes/<node>/` | journal and sandboxes of a node; its `images/` and `drivers/<driver>/` |
| `up.json` | how to reach what runs: the ready line of `dsec up` |
| `control.lock`, `<node>.lock` | held while that part of the home runs |
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsec.bus.errors import AlreadyRunning, BrokerDown, Unauthenticated
from dsec.bus.files import write_private

DEFAULT: Final = "/var/lib/dsec"

_HELD: Final[set[Path]] = set()
"""Locks of this process."""


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below `path`; none is made by asking for it."""

    path: Path

    @classmethod
    def default(cls) -> Home:
        return cls(Path(os.environ.get("DSEC_HOME") or DEFAULT))

    @property
    def broker(self) -> Path:
        return self.path / "broker"

    @property
    def credentials(self) -> Path:
        return self.path / "credentials"

    def part(self, name: str) -> Path:
        """A control-plane part's own directory."""
        return self.path / "parts" / name

    def node(self, node: str) -> Path:
        """A node's own directory."""
        return self.path / "nodes" / node

    def images(self, node: str) -> Path:
        """What `dsec.images` classes are constructed with."""
        return self.node(node) / "images"

    def driver(self, node: str, driver: str) -> Path:
        """What `dsec.drivers` classes are constructed with."""
        return self.node(node) / "drivers" / driver

    def announce(self, ready: dict[str, Any]) -> None:
        """Leave word of what runs here."""
        write_private(self.path / "up.json", json.dumps(ready) + "\n")

    def ready(self) -> dict[str, Any]:
        """What `announce` left. Raises BrokerDown when nothing was ever started here, Unauthenticated when
        it is not ours to read.
        """
        try:
            return dict(json.loads((self.path / "up.json").read_text(encoding="utf-8")))
        except PermissionError as error:
            raise Unauthenticated(
                f"{self.path} belongs to another user: set DSEC_URL and DSEC_CREDENTIALS"
            ) from error
        except (OSError, ValueError) as error:
            raise BrokerDown(
                f"nothing runs on {self.path}: start it with `dsec up --home {self.path}`"
            ) from error

    @contextlib.contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Alone with `what` while the block runs; the lock goes with the process. Raises AlreadyRunning.

        A POSIX record lock: unlike one of flock(2) it does not live on in a child that outlives us, and
        unlike that it does not keep out its own process, so that one is asked apart.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o755)
        lock = (self.path / f"{what}.lock").resolve()
        taken = AlreadyRunning(f"another process runs {what} on {self.path}: end that one")
        if lock in _HELD:
            raise taken
        with lock.open("a", encoding="ascii") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in {errno.EACCES, errno.EAGAIN}:
                    raise
                raise taken from None
            _HELD.add(lock)
            try:
                yield
            finally:
                _HELD.discard(lock)


def default_node() -> str:
    """The node id of this machine, from its host name."""
    name = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")
    return f"n-{name[:40].strip('-') or 'local'}"
