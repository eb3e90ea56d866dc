"""Network namespaces joined by a bridge, whose links can be cut: real partitions on one machine.

root (the tests) ---- bridge in the control namespace (broker, control plane) ---- one namespace per node
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator

HUB = f"10.213.{os.getpid() % 254 + 1}"
"""Of the addresses; the control plane has `.1`, the tests `.2`, nodes the following ones."""
_numbers = itertools.count()


class Net:
    """Namespaces of one test; made by `running`."""

    def __init__(self) -> None:
        self.tag = f"df{os.getpid() % 10000}{next(_numbers)}"
        self._nodes: list[str] = []

    @property
    def control(self) -> str:
        return f"{self.tag}-ctl"

    @property
    def broker_host(self) -> str:
        return f"{HUB}.1"

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls) -> AsyncIterator[Net]:
        """Bridge and control namespace, reachable from here. All of it is gone afterwards."""
        net = cls()
        try:
            await ip("netns", "add", net.control)
            await ip("-n", net.control, "link", "add", "br0", "type", "bridge")
            await ip("-n", net.control, "addr", "add", f"{HUB}.1/24", "dev", "br0")
            await ip("-n", net.control, "link", "set", "br0", "up")
            await ip("-n", net.control, "link", "set", "lo", "up")
            await net._join("root", None, f"{HUB}.2")
            yield net
        finally:
            await ip("link", "del", net._near("root"))  # at once; a namespace goes some time after its name
            for space in (*net._nodes, net.control):
                await ip("netns", "del", space)

    async def add(self, node: str) -> str:
        """A namespace for `node`; its name."""
        space = f"{self.tag}-{node}"
        await ip("netns", "add", space)
        self._nodes.append(space)
        await ip("-n", space, "link", "set", "lo", "up")
        await self._join(node, space, f"{HUB}.{10 + len(self._nodes)}")
        return space

    async def _join(self, name: str, space: str | None, address: str) -> None:
        near = self._near(name) if space is None else "eth0"
        inside = () if space is None else ("-n", space)
        await ip("-n", self.control, "link", "add", name, "type", "veth", "peer", "name", f"p-{name}"[:15])
        peer = f"p-{name}"[:15]
        target = space or str(os.getpid())
        await ip("-n", self.control, "link", "set", peer, "netns", target, "name", near)
        await ip("-n", self.control, "link", "set", name, "master", "br0", "up")
        await ip(*inside, "addr", "add", f"{address}/24", "dev", near)
        await ip(*inside, "link", "set", near, "up")

    def _near(self, name: str) -> str:
        return f"{self.tag}-{name}"[:15]

    async def cut(self, node: str) -> None:
        """Nothing passes between `node` and the rest; no end is told."""
        await ip("-n", self.control, "link", "set", node, "down")

    async def join(self, node: str) -> None:
        """Undo `cut`."""
        await ip("-n", self.control, "link", "set", node, "up")


async def ip(*words: str) -> None:
    """`ip WORDS…` of iproute2. Raises RuntimeError with what it said."""
    process = await asyncio.create_subprocess_exec(
        "ip", *words, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    _, said = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {said.decode().strip()}")
