"""The contract of a backend, and the protocols through which a node's parts use one another.

A driver turns a composed root file system into a running inside that answers the one `Guest` client. Its
methods may be repeated after a failure; each tells what it raises. `sdk.testing` holds the suite for it.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from dsec.bus.errors import Failure
from dsec.bus.messages import Layer
from dsec.bus.spec import Image, Limits, Spec


@dataclass(frozen=True, slots=True)
class Rootfs:
    """A composed root file system, mounted at `path` on the host.

    `uid_base`: host id of the inside's uid and gid 0; 65,536 ids follow. Owners in `upper` are inside ids.
    """

    path: Path
    upper: Path
    uid_base: int


@dataclass(frozen=True, slots=True)
class Order:
    """What to start: the spec, and the limits to apply; a limit the driver does not offer is None."""

    sandbox: str
    spec: Spec
    limits: Limits


@dataclass(frozen=True, slots=True)
class Handle:
    """All that a restarted node needs to find a sandbox again; only its driver reads `state`."""

    sandbox: str
    driver: str
    version: int
    state: bytes


@dataclass(frozen=True, slots=True)
class Info:
    """What a driver can do: `limits` names the fields of Limits that it enforces, `defaults` their values."""

    name: str
    version: int
    limits: frozenset[str]
    defaults: Limits


@dataclass(frozen=True, slots=True)
class Channel:
    """A connected byte channel to the inside.

    `descriptors`: the socket is SEQPACKET and passes descriptors (containers); otherwise a byte stream.
    `cgroup`: directory on the v2 hierarchy under which each exec gets a cgroup of its own; of controllers on
    version 1 the sandbox's directory has the same path on their hierarchies.
    """

    socket: socket.socket
    descriptors: bool
    cgroup: Path | None = None


@dataclass(frozen=True, slots=True)
class Death:
    """A sandbox whose inside died by itself."""

    sandbox: str
    failure: Failure
    reason: str


class Driver(Protocol):
    """Lifecycle of one backend on one node. Constructed as `cls(home)`: a directory for its own files."""

    def info(self) -> Info:
        """Constant while the driver lives."""
        ...

    async def check(self) -> None:
        """Whether this machine can run the backend. Raises MissingTool telling what to install or enable."""
        ...

    async def create(self, order: Order, rootfs: Rootfs) -> Handle:
        """Start the inside; it listens when this returns. Leaves nothing behind when it raises.

        Raises Unsupported, MissingTool, DiskFull, LimitError, InfraError.
        """
        ...

    async def channel(self, sandbox: str) -> Channel:
        """A new channel; the former one, if any, is dead. Raises NoSuchSandbox, AgentCrippled."""
        ...

    async def destroy(self, sandbox: str) -> None:
        """Nothing is left of it afterwards; repeatable, and silent for what never existed."""
        ...

    async def inspect(self, sandbox: str) -> Death | None:
        """None while the inside lives, else how it died. Raises NoSuchSandbox."""
        ...

    def watch(self) -> AsyncIterator[Death]:
        """Deaths as they happen, of sandboxes that were not destroyed."""
        ...

    async def recover(self, handle: Handle) -> None:
        """Take a sandbox over from a former process of this node. Raises NoSuchSandbox when it is dead."""
        ...

    async def close(self) -> None:
        """Let go of what no sandbox uses; sandboxes stay as they are, for `recover`. Repeatable."""
        ...


@runtime_checkable
class CanPause(Protocol):
    """Freezing without losing anything; both repeatable."""

    async def pause(self, sandbox: str) -> None: ...

    async def resume(self, sandbox: str) -> None: ...


@runtime_checkable
class CanReclaim(CanPause, Protocol):
    """Taking memory from a sandbox that is paused for long; it gets it back as it touches it again."""

    async def reclaim(self, sandbox: str) -> None:
        """Give the machine what it can take within seconds; nothing is lost, and nothing has to be taken.

        Only between `pause` and `resume`; repeatable. Raises NoSuchSandbox, InfraError.
        """
        ...


@runtime_checkable
class CanConnect(Protocol):
    """Reaching what listens inside."""

    async def connect(self, sandbox: str, port: int) -> socket.socket:
        """A connected, non-blocking stream socket to TCP `port` of the inside's own loopback.

        It never reaches anything else. Raises PortClosed, NoSuchSandbox, InfraError.
        """
        ...


@runtime_checkable
class CountsOom(Protocol):
    """Telling a command killed for memory from one killed otherwise."""

    async def oom_kills(self, sandbox: str) -> int:
        """How many processes of the sandbox the kernel has killed for memory so far."""
        ...


@runtime_checkable
class MayBeAway(Protocol):
    """A driver in a process of its own (`bus.remote`): what was started runs on while it is away."""

    @property
    def away(self) -> bool:
        """Whether it cannot be asked now."""
        ...


class Images(Protocol):
    """Layers of a node, and root file systems composed from them. Constructed as `cls(home)`."""

    async def check(self) -> None:
        """Whether this machine can compose. Raises MissingTool telling what to install or enable."""
        ...

    async def close(self) -> None:
        """Let go of what no sandbox uses; sandboxes stay as they are. Repeatable."""
        ...

    async def compose(self, sandbox: str, image: Image) -> Rootfs:
        """Mount `image` with a fresh writable layer. Leaves nothing when it raises NoSuchImage, DiskFull."""
        ...

    async def release(self, sandbox: str) -> None:
        """Unmount and delete the writable layer; repeatable, silent for what never existed."""
        ...

    async def recover(self, sandbox: str) -> Rootfs:
        """The root file system of a sandbox composed by a former process. Raises NoSuchSandbox."""
        ...

    async def composed(self) -> frozenset[str]:
        """Every sandbox that has a root file system on this node, live or left over."""
        ...

    async def pack(self, sandbox: str, name: str, paths: tuple[str, ...] | None) -> Layer:
        """The writable layer as layer `name`: verified and in the catalog on return. The caller froze it.

        With `paths` only what lies under them, no symlink followed, no device, no setuid.
        Raises NoSuchSandbox, Conflict (the name holds other content), DiskFull.
        """
        ...

    async def has(self, name: str) -> bool:
        """Whether the catalog has a layer of that name; cheap."""
        ...

    async def layers(self) -> list[Layer]:
        """The catalog, by name."""
        ...
