"""Devices: who gets which, and that a call finds the nodes of its own. No GPU is needed, any will do."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from dsec.bus.caller import Gpu
from dsec.bus.errors import NoCapacity, SpecError, Unsupported
from dsec.plugins.fncall.devices import Device, DeviceNode, Devices, declared
from dsec.plugins.images import ErofsImages
from dsec.sdk import Client
from tests.fncall.conftest import calling

GIB = 1 << 30
ZERO = Device(
    id="zero",
    memory=8 * GIB,
    nodes=(DeviceNode(name="gpu0", major=1, minor=5), DeviceNode(name="dri/card0", major=1, minor=5)),
    env=(("VISIBLE", "zero"),),
)
ONE = ZERO.model_copy(update={"id": "one", "memory": 4 * GIB})


async def test_an_exclusive_call_has_a_device_alone() -> None:
    devices = Devices((ONE,))
    async with devices.taken(Gpu()):
        for other in (Gpu(), Gpu(mode="shared", memory=GIB)):
            with pytest.raises(NoCapacity):
                async with devices.taken(other, patience=0.01):
                    pass
    async with devices.taken(Gpu(), patience=0.01):
        pass


async def test_shared_calls_fill_a_device_before_they_take_another() -> None:
    devices, shared = Devices((ZERO, ONE)), Gpu(mode="shared", memory=2 * GIB)
    async with contextlib.AsyncExitStack() as stack:
        given = [(await stack.enter_async_context(devices.taken(shared))).id for _ in range(3)]
        assert given == ["one", "one", "zero"]
        with pytest.raises(NoCapacity):
            async with devices.taken(Gpu(), patience=0.01):
                pass


async def test_who_waits_gets_a_device_when_it_is_given_back() -> None:
    devices, order = Devices((ONE,)), []

    async def use(number: int) -> None:
        async with devices.taken(Gpu()):
            order.append(number)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(use(number) for number in range(4)))
    assert order == [0, 1, 2, 3]


async def test_what_no_device_has_is_not_supported() -> None:
    for devices in (Devices(()), Devices((ONE,))):
        with pytest.raises(Unsupported):
            async with devices.taken(Gpu(memory=100 * GIB)):
                pass


def test_a_declaration_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    assert declared(file) == ()
    good = ZERO.model_dump_json()
    file.write_text(f"[{good}]")
    assert declared(file) == (ZERO,)
    file.write_text("[" + good.replace('[["VISIBLE","zero"]]', '{"VISIBLE":"zero"}') + "]")
    assert declared(file) == (ZERO,)
    evil = good.replace("dri/card0", "../../etc/x")
    for text in ("{}", "[", f"[{good},{good}]", f"[{evil}]"):
        file.write_text(text)
        with pytest.raises(SpecError):
            declared(file)


@pytest.mark.node
async def test_only_a_call_that_has_the_device_sees_it(images: ErofsImages, tmp_path: Path) -> None:
    source = """
import os
def f():
    found = [name for name in ("/dev/gpu0", "/dev/dri/card0") if os.path.exists(name)]
    return found, [open(name, "rb").read(2) == bytes(2) for name in found], os.environ.get("VISIBLE")
"""
    async with calling(images, tmp_path, devices=(ZERO,)) as call:
        assert (await call(source, entry="f")).value == [[], [], None]
        equipped = await call(source, entry="f", gpu={"mode": "exclusive"})
        assert equipped.value == [["/dev/gpu0", "/dev/dri/card0"], [True, True], "zero"]


@pytest.mark.node
async def test_where_no_node_has_a_device_a_call_is_refused_at_once(calls: Client) -> None:
    async with asyncio.timeout(5):
        with pytest.raises(NoCapacity, match="device"):
            await calls.call("1", gpu={"mode": "exclusive"}, timeout=60)
