"""The control group of a sandbox, on the version 2 hierarchy, with or without controllers on it.

<version 2>/dsec-bubble/<hash of home>/<sandbox>         the parent of a group for each command
<version 2>/dsec-bubble/<hash of home>/<sandbox>/init    bubblewrap and the agent
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from pathlib import Path

from dsec.bus.errors import InfraError, MissingTool

PATIENCE = 10.0
"""Seconds for the kernel to end or freeze what it was told to."""


def hierarchy() -> Path:
    """Where version 2 is mounted. Raises MissingTool."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 "):
            return Path(left.split(" ")[4])
    raise MissingTool("no cgroup version 2 hierarchy is mounted")


class Group:
    """One sandbox's group, existing or not."""

    def __init__(self, home: Path, sandbox: str) -> None:
        name = hashlib.blake2s(str(home.resolve()).encode(), digest_size=6).hexdigest()
        self.path = hierarchy() / "dsec-bubble" / name / sandbox

    def make(self) -> Path:
        """The group for the agent, made. Raises OSError."""
        init = self.path / "init"
        init.mkdir(parents=True, exist_ok=True)
        return init

    async def freeze(self, *, frozen: bool) -> None:
        """Repeatable. Raises FileNotFoundError, InfraError."""
        (self.path / "cgroup.freeze").write_text(str(int(frozen)))
        await self._until("frozen", int(frozen))

    async def remove(self) -> None:
        """Kill everything in it and remove it; repeatable. Raises InfraError."""
        if self.path.exists():
            (self.path / "cgroup.kill").write_text("1")
            await self._until("populated", 0)
            for directory in sorted(self.path.rglob("*"), reverse=True):
                if directory.is_dir():
                    directory.rmdir()
            self.path.rmdir()

    def remove_parents(self) -> None:
        """Those that are empty."""
        for parent in (self.path.parent, self.path.parent.parent):
            with contextlib.suppress(OSError):
                parent.rmdir()

    async def _until(self, key: str, value: int) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while f"{key} {value}\n" not in (self.path / "cgroup.events").read_text():  # noqa: ASYNC110 - a file
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise InfraError(f"{self.path.name} is not '{key} {value}' after {PATIENCE:g} s") from None
