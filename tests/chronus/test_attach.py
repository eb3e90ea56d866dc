"""A node that comes back: commands went on, nothing they wrote is lost, their ends are kept."""

from __future__ import annotations

import asyncio
import os

import pytest

from dsec.bus.chronus.guest import Command, Guest
from dsec.bus.errors import AgentCrippled, NoSuchExec
from tests.chronus.inside import Inside, drain, exited, new_id, sh

pytestmark = pytest.mark.node


async def lose(guest: Guest) -> None:
    """As a node that was killed: the connection and all its descriptors are gone."""
    for started in list(guest._execs.values()):
        started.detach()
    guest.close()


async def test_unread_output_and_the_exit_status_are_kept(box: Inside) -> None:
    exec_id = new_id()
    async with box.guest() as first:
        await first.start(exec_id, Command(("sh", "-c", "echo before; sleep 0.3; echo after; exit 5")))
        await lose(first)
    await asyncio.sleep(0.6)
    async with box.guest() as second:
        assert await second.execs() == [exec_id]
        found = await second.attach(exec_id)
        assert (await exited(found)).code == 5
        assert await drain(found.stdout) == b"before\nafter\n"
        await found.release()
        assert await second.execs() == []


async def test_a_running_command_goes_on_and_its_end_is_told_to_the_new_connection(box: Inside) -> None:
    exec_id = new_id()
    async with box.guest() as first:
        command = Command(("sh", "-c", "echo a; read x; echo got:$x; exit 6"), stdin=True)
        started = await first.start(exec_id, command)
        await asyncio.sleep(0.05)
        assert os.read(started.stdout, 100) == b"a\n"
        await lose(first)
    async with box.guest() as second:
        found = await second.attach(exec_id)
        assert await second.attach(exec_id) is found
        assert (await sh(second, "echo others run")) == "others run"
        assert not found.exited.done()
        assert found.stdin is not None
        os.write(found.stdin, b"hello\n")
        assert (await exited(found)).code == 6
        assert await drain(found.stdout) == b"got:hello\n"
        await found.release()


async def test_a_writer_without_a_reader_is_not_killed_by_sigpipe(box: Inside) -> None:
    exec_id = new_id()
    async with box.guest() as first:
        await first.start(exec_id, Command(("sh", "-c", "head -c 3000000 /dev/zero; echo END")))
        await lose(first)
    await asyncio.sleep(0.2)
    async with box.guest() as second:
        found = await second.attach(exec_id)
        output = await drain(found.stdout)
        assert len(output) == 3_000_004
        assert (await exited(found)).code == 0
        await found.release()


async def test_the_newest_connection_wins_and_the_former_learns_of_it(box: Inside) -> None:
    async with box.guest() as first:
        started = await first.start(new_id(), Command(("sleep", "60")))
        async with box.guest() as second:
            await asyncio.wait_for(first.wait_closed(), 10)
            with pytest.raises(AgentCrippled):
                await first.ping()
            with pytest.raises(AgentCrippled):
                await started.exited
            started.detach()
            await second.ping()
            await (await second.attach(started.id)).release()


async def test_a_call_under_way_ends_with_a_typed_error_when_the_channel_is_lost(box: Inside) -> None:
    async with box.guest() as first:
        calls = [asyncio.create_task(first.ping()) for _ in range(5)]
        await asyncio.sleep(0)
        first.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, AgentCrippled) for result in results)


async def test_an_exec_that_does_not_exist_or_was_released_cannot_be_attached(box: Inside) -> None:
    async with box.guest() as guest:
        with pytest.raises(NoSuchExec):
            await guest.attach(new_id())
        started = await guest.start(new_id(), Command(("true",)))
        await started.release()
        with pytest.raises(NoSuchExec):
            await guest.attach(started.id)


async def test_attaching_twice_at_once_or_being_cancelled_leaks_no_descriptor(box: Inside) -> None:
    async with box.guest() as first:
        started = await first.start(new_id(), Command(("sleep", "60")))
        started.detach()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (as procfs has it)
    for turns in range(6):
        async with box.guest() as guest:
            task = asyncio.create_task(guest.attach(started.id))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            one, two = await asyncio.gather(guest.attach(started.id), guest.attach(started.id))
            assert one is two
            one.detach()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208 (as procfs has it)
    async with box.guest() as last:
        await (await last.attach(started.id)).release()


async def test_fifty_reconnections_leave_no_descriptor_behind(box: Inside) -> None:
    for _ in range(50):
        async with box.guest() as guest:
            await guest.ping()
    async with box.guest() as guest:
        assert await sh(guest, "echo ok") == "ok"
        assert len(os.listdir(f"/proc/{box.pid}/fd")) < 12  # noqa: PTH208 (as procfs has it)
