"""Trees of processes: all of a command's are killed, all orphans are reaped, hundreds run at once."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dsec.bus.chronus.guest import Command, Exec, Guest
from dsec.bus.errors import LimitError, NoSuchExec
from tests.chronus.inside import Inside, exited, inside, new_id, read_some, run, sh

pytestmark = pytest.mark.node

STUBBORN = """
trap '' TERM HUP INT
for i in 1 2 3 4 5; do
  setsid sh -c 'trap "" TERM HUP; (sleep 4711 & sleep 4711 &) ; while :; do sleep 4711; done' &
  (setsid sleep 4711 &)
done
sleep 0.3
echo ready
sleep 4711
"""


async def stubborn(guest: Guest) -> Exec:
    started = await guest.start(new_id(), Command(("sh", "-c", STUBBORN)))
    assert await read_some(started.stdout) == b"ready\n"
    assert int(await sh(guest, COUNT)) >= 16
    return started


COUNT = "ps -e -o args= | grep -c '[s]leep 4711' || true"


async def test_kill_tree_ends_what_has_left_the_session_and_ignores_term(guest: Guest) -> None:
    started = await stubborn(guest)
    await started.kill_tree()
    assert await sh(guest, COUNT) == "0"
    assert (await exited(started, timeout=2)).signal == 9
    await started.kill_tree()
    await started.release()


async def test_release_kills_what_is_left_and_may_be_repeated(guest: Guest, box: Inside) -> None:
    started = await stubborn(guest)
    await asyncio.gather(started.release(), started.release())
    await started.release()
    with pytest.raises(NoSuchExec):
        await exited(started)
    assert await sh(guest, COUNT) == "0"
    assert not (box.cgroup / started.id).exists()
    assert started.id not in await guest.execs()


async def test_another_commands_processes_are_left_alone(guest: Guest) -> None:
    bystander = await guest.start(new_id(), Command(("sleep", "4712")))
    started = await stubborn(guest)
    await started.release()
    assert not bystander.exited.done()
    assert await sh(guest, "ps -e -o args= | grep -c '[s]leep 4712'") == "1"
    await bystander.release()


async def test_orphans_are_reaped(guest: Guest) -> None:
    for _ in range(3):
        await run(guest, "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do (setsid true &) ; done; sleep 0.1")
    await asyncio.sleep(0.2)
    assert await sh(guest, "ps -e -o stat= | grep -c '^Z' || true") == "0"


async def test_300_commands_run_at_once(guest: Guest, box: Inside) -> None:
    commands = (guest.start(new_id(), Command(("sh", "-c", "echo $$; exec sleep 60"))) for _ in range(300))
    started = await asyncio.gather(*commands)
    assert len(await guest.execs()) == 300
    assert await sh(guest, "ps -e -o args= | grep -c '^sleep 60'") == "300"
    pids = {await read_some(one.stdout) for one in started}
    assert len(pids) == 300
    await asyncio.gather(*(one.release() for one in started))
    assert await guest.execs() == []
    assert len(os.listdir(f"/proc/{box.pid}/fd")) < 12  # noqa: PTH208 (as procfs has it)


async def start_many(guest: Guest, count: int) -> None:
    for _ in range(count):
        await guest.start(new_id(), Command(("sleep", "100")))


async def test_no_more_processes_is_a_limit_and_the_agent_survives_it() -> None:
    with inside(userns=True, nproc=20) as box:
        async with box.guest() as guest:
            bomb = await guest.start(new_id(), Command(("sh", "-c", "while :; do sleep 100 & done")))
            await asyncio.sleep(0.5)
            with pytest.raises(LimitError):
                await start_many(guest, 30)
            await guest.ping()
            await bomb.release()
            for exec_id in await guest.execs():
                await (await guest.attach(exec_id)).release()
            assert await sh(guest, "echo works again") == "works again"


async def test_commands_are_preferred_by_the_oom_killer_and_the_agent_is_not(
    box: Inside, userns_box: Inside
) -> None:
    for one in (box, userns_box):
        async with one.guest() as guest:
            own = int(Path(f"/proc/{one.pid}/oom_score_adj").read_text("ascii"))
            assert own <= 0
            assert int(await sh(guest, "(cat /proc/self/oom_score_adj)")) == own + 300
