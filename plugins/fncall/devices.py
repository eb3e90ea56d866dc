"""GPUs for calls: devices that a node's operator declares, each given to one call alone or to several
together.

`<node home>/calls/devices.json` is a list of `Device` objects. A node that declares none does not listen for
such calls. A device that is shared is divided by what calls say they need; its driver does not hold them to
it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError, field_validator

from dsec.bus.caller import Gpu
from dsec.bus.errors import NoCapacity, SpecError, Unsupported
from dsec.bus.spec import EnvName, NoNul, Strict

NodeName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][\w-]*(/[A-Za-z][\w-]*)?$", max_length=64)]


class DeviceNode(Strict):
    """A character device as the call finds it: `/dev/<name>`."""

    name: NodeName
    major: int = Field(ge=0, le=4095)
    minor: int = Field(ge=0, le=(1 << 20) - 1)


class Device(Strict):
    """`memory` in bytes; `env`: variables that programs which use it want, such as CUDA_VISIBLE_DEVICES."""

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    memory: int = Field(gt=0)
    nodes: tuple[DeviceNode, ...] = Field(min_length=1, max_length=16)
    env: tuple[tuple[EnvName, NoNul], ...] = ()

    @field_validator("env", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        """In a file it is an object."""
        return tuple(value.items()) if isinstance(value, dict) else value

    def arguments(self) -> list[str]:
        """For `native/enter.c`."""
        return [f"dev:{one.name}:{one.major}:{one.minor}" for one in self.nodes]


def declared(file: Path) -> tuple[Device, ...]:
    """The devices in `file`; none when it is not there. Raises SpecError."""
    if not file.exists():
        return ()
    try:
        found = TypeAdapter(tuple[Device, ...]).validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise SpecError.during(f"{file} does not declare devices", error) from error
    if len({one.id for one in found}) != len(found):
        raise SpecError(f"{file} declares a device twice")
    return found


class Devices:
    """Who has which device now; the first come are the first served."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self._devices = devices
        self._users: dict[str, list[Gpu]] = {one.id: [] for one in devices}
        self._changed = asyncio.Condition()

    def __bool__(self) -> bool:
        return bool(self._devices)

    @contextlib.asynccontextmanager
    async def taken(self, asked: Gpu, patience: float = 10.0) -> AsyncIterator[Device]:
        """A device while the block runs. Raises Unsupported (there is none such), NoCapacity (none is
        free).
        """
        if not any(_large(one, asked) for one in self._devices):
            why = "no node that declares such a device" if self._devices else "no device is declared"
            raise Unsupported(f"{why}: a call cannot have that GPU here", field="gpu")
        device = await self._wait(asked, patience)
        try:
            yield device
        finally:
            async with self._changed:
                self._users[device.id].remove(asked)
                self._changed.notify_all()

    async def _wait(self, asked: Gpu, patience: float) -> Device:
        try:
            async with asyncio.timeout(patience), self._changed:
                while (device := self._free(asked)) is None:
                    await self._changed.wait()
                self._users[device.id].append(asked)
                return device
        except TimeoutError:
            raise NoCapacity(f"no device was free within {patience:g} s", retry_after=1.0) from None

    def _free(self, asked: Gpu) -> Device | None:
        """For a shared one the fullest that still has room, so that others stay whole."""
        fitting = [one for one in self._devices if _large(one, asked) and self._admits(one, asked)]
        return min(fitting, key=lambda one: one.memory - self._used(one), default=None)

    def _admits(self, device: Device, asked: Gpu) -> bool:
        users = self._users[device.id]
        if asked.mode == "exclusive" or any(one.mode == "exclusive" for one in users):
            return not users
        return self._used(device) + _needed(device, asked) <= device.memory

    def _used(self, device: Device) -> int:
        return sum(_needed(device, one) for one in self._users[device.id])


def _large(device: Device, asked: Gpu) -> bool:
    return _needed(device, asked) <= device.memory


def _needed(device: Device, asked: Gpu) -> int:
    """A shared call that does not tell takes half of it."""
    if asked.memory is not None:
        return asked.memory
    return device.memory if asked.mode == "exclusive" else device.memory // 2
