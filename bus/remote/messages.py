"""Bodies of `driver.*`: what an edge and a driver in a process of its own tell each other."""

from __future__ import annotations

import base64
from pathlib import Path

from pydantic import Field

from dsec.bus.driver import (
    CanConnect,
    CanPause,
    CanReclaim,
    CountsOom,
    Death,
    Driver,
    Handle,
    Info,
    Order,
    Rootfs,
)
from dsec.bus.errors import Failure
from dsec.bus.messages import VERSION, Message
from dsec.bus.spec import Limits, Spec

CAPABILITIES: dict[str, type] = {
    "pause": CanPause,
    "reclaim": CanReclaim,
    "oom_kills": CountsOom,
    "connect": CanConnect,
}
"""Name on the wire -> what a driver implements."""


def machine() -> str:
    """The same for two processes that see the same mounts: boot id and mount namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/mnt').stat().st_ino}"


class About(Message):
    """A request about one sandbox; also the answer to oom_kills, which counts."""

    v: int = VERSION
    sandbox: str


class ConnectTo(About):
    """driver.connect; answered as driver.channel is."""

    port: int


class DriverUp(Message):
    """driver.up, 1 Hz, and the answer to driver.info. Another `instance` is another process."""

    v: int = VERSION
    instance: str
    name: str
    version: int
    limits: list[str]
    defaults: Limits
    capabilities: list[str]
    machine: str
    leaving: bool = False

    @classmethod
    def of(cls, driver: Driver, instance: str, *, leaving: bool = False) -> DriverUp:
        info = driver.info()
        return cls(
            instance=instance,
            name=info.name,
            version=info.version,
            limits=sorted(info.limits),
            defaults=info.defaults,
            capabilities=[name for name, kind in CAPABILITIES.items() if isinstance(driver, kind)],
            machine=machine(),
            leaving=leaving,
        )

    def info(self) -> Info:
        return Info(self.name, self.version, frozenset(self.limits), self.defaults)


class CreateOrder(Message):
    """driver.create: what to start, on which root file system."""

    v: int = VERSION
    sandbox: str
    spec: Spec
    limits: Limits
    path: str
    upper: str
    uid_base: int

    @classmethod
    def of(cls, order: Order, rootfs: Rootfs) -> CreateOrder:
        return cls(
            sandbox=order.sandbox,
            spec=order.spec,
            limits=order.limits,
            path=str(rootfs.path),
            upper=str(rootfs.upper),
            uid_base=rootfs.uid_base,
        )

    def order(self) -> Order:
        return Order(self.sandbox, self.spec, self.limits)

    def rootfs(self) -> Rootfs:
        return Rootfs(Path(self.path), Path(self.upper), self.uid_base)


class HandleBody(Message):
    """The answer to create, and driver.recover."""

    v: int = VERSION
    sandbox: str
    driver: str
    version: int
    state: str = Field(description="base64")

    @classmethod
    def of(cls, handle: Handle) -> HandleBody:
        state = base64.b64encode(handle.state).decode()
        return cls(sandbox=handle.sandbox, driver=handle.driver, version=handle.version, state=state)

    def handle(self) -> Handle:
        return Handle(self.sandbox, self.driver, self.version, base64.b64decode(self.state))


class Passed(Message):
    """The answer to channel: fetch it at the unix socket `path` against `ticket` (`handover`)."""

    path: str
    ticket: str
    descriptors: bool
    cgroup: str | None


class DeathBody(Message):
    """driver.death, and what inspect and recover tell of a dead sandbox."""

    v: int = VERSION
    sandbox: str
    failure: Failure
    reason: str

    @classmethod
    def of(cls, death: Death) -> DeathBody:
        return cls(sandbox=death.sandbox, failure=death.failure, reason=death.reason)

    def death(self) -> Death:
        return Death(self.sandbox, self.failure, self.reason)
