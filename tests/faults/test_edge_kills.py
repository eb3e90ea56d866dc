"""kill -9 of the edge at moments spread over an operation: it is answered after all, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dsec.bus.messages import State
from dsec.sdk import Client, Sandbox
from tests.faults.support import Halves

pytestmark = [pytest.mark.node, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(240)]
MOMENTS = (0.0, 0.004, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3)
"""Seconds from a request to the kill."""
MIB = 1 << 20


async def _killed_in_each(
    halves: Halves, sandboxes: list[Sandbox], work: Callable[[Sandbox, int], Awaitable[object]]
) -> None:
    """Do `work` on each sandbox; one kill of the edge finds each at its own moment."""

    async def begun(sandbox: Sandbox, number: int) -> None:
        await asyncio.sleep(MOMENTS[-1] - MOMENTS[number])
        await work(sandbox, number)

    async with asyncio.TaskGroup() as group:
        for number, sandbox in enumerate(sandboxes):
            group.create_task(begun(sandbox, number))
        await asyncio.sleep(MOMENTS[-1])
        await halves.restart_edge()


async def _created(client: Client) -> list[Sandbox]:
    return list(await asyncio.gather(*(client.create(image="base") for _ in MOMENTS)))


async def test_a_pack_is_finished_and_its_sandbox_runs_on(halves: Halves, connected: Client) -> None:
    sandboxes = await _created(connected)
    for sandbox in sandboxes:
        assert (await sandbox.run("head -c 3000000 /dev/urandom > /f; sleep 1000 & echo")).code == 0

    async def pack(sandbox: Sandbox, number: int) -> None:
        name = f"killed-{number}"
        assert (await sandbox.pack(name)).name == name
        assert (await sandbox.run("echo on")).stdout == "on\n"
        packed = await connected.create(image={"base": "base", "packs": [name]})
        sums = [(await one.run("md5sum </f")).stdout for one in (sandbox, packed)]
        assert sums[0] == sums[1]

    await _killed_in_each(halves, sandboxes, pack)
    assert not [path for path in halves.leftovers() if ".import-" in path]


async def test_a_file_is_written_whole(halves: Halves, connected: Client) -> None:
    data = bytes(range(256)) * (12 * MIB // 256)

    async def write(sandbox: Sandbox, number: int) -> None:
        await sandbox.files.write("/f", data[number:])
        assert await sandbox.files.read("/f") == data[number:]

    await _killed_in_each(halves, await _created(connected), write)


async def test_pauses_and_resumes_take_place_and_lose_nothing(halves: Halves, connected: Client) -> None:
    sandboxes = await _created(connected)
    counts = [await one.start("for i in $(seq 200); do echo $i; sleep 0.01; done") for one in sandboxes]

    async def pause(sandbox: Sandbox, _: int) -> None:
        for _ in range(3):
            await sandbox.pause()
            assert (await sandbox.stat()).state is State.PAUSED
            await sandbox.resume()
            assert (await sandbox.run("echo on")).stdout == "on\n"

    await _killed_in_each(halves, sandboxes, pause)
    for count in counts:
        assert (await count.wait()).stdout == "".join(f"{number}\n" for number in range(1, 201))


async def test_a_destroy_is_finished_and_answered_again(halves: Halves, connected: Client) -> None:
    sandboxes = await _created(connected)
    for sandbox in sandboxes:
        await sandbox.start("(setsid sleep 1000 &); while :; do echo x > /f; done", detach=True)

    async def destroy(sandbox: Sandbox, _: int) -> None:
        await sandbox.destroy()
        assert halves.leftovers(sandbox.id) == []
        await sandbox.destroy()

    await _killed_in_each(halves, sandboxes, destroy)
    assert "Traceback" not in halves.log()


async def test_a_paused_sandbox_is_still_paused_after_a_restart(halves: Halves, connected: Client) -> None:
    sandbox = await connected.create(image="base")
    counting = await sandbox.start("i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo $i; sleep 0.02; done")
    await sandbox.pause()
    await halves.restart_edge()
    assert (await sandbox.stat()).state is State.PAUSED
    await sandbox.resume()
    assert (await counting.wait()).stdout == "".join(f"{number}\n" for number in range(1, 61))
