"""Commands through a real chronus: results, streams, users, errors."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal

import pytest

from dsec.bus.chronus.guest import Command, Guest
from dsec.bus.errors import Conflict, NoSuchExec, NoSuchProgram, SpecError, TooLarge
from tests.chronus.inside import Inside, drain, exited, inside, new_id, read_some, run, sh

pytestmark = pytest.mark.node


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
async def test_an_exit_code_comes_back(guest: Guest, code: int) -> None:
    result = await run(guest, "sh", "-c", f"exit {code}")
    assert (result.exit.code, result.exit.signal) == (code, None)


async def test_death_by_a_signal_is_told_as_such(guest: Guest) -> None:
    result = await run(guest, "sh", "-c", "kill -9 $$")
    assert (result.exit.code, result.exit.signal) == (None, signal.SIGKILL)


async def test_use_of_cpu_and_memory_is_told(guest: Guest) -> None:
    result = await run(guest, "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
    assert 5_000 < result.exit.cpu_us < 20_000_000
    assert 100_000 < result.exit.max_rss < 1 << 30


async def test_both_streams_carry_raw_bytes(guest: Guest) -> None:
    result = await run(guest, "sh", "-c", r"printf '\226\377\000ok'; printf '\000\001' >&2")
    assert (result.stdout, result.stderr) == (b"\x96\xff\x00ok", b"\x00\x01")


async def test_without_stdin_there_is_an_immediate_end_of_file(guest: Guest) -> None:
    result = await run(guest, "cat")
    assert (result.exit.code, result.stdout) == (0, b"")


async def test_stdin_reaches_the_command_and_ends_when_closed(guest: Guest) -> None:
    started = await guest.start(new_id(), Command(("sh", "-c", "read x; echo got:$x; cat"), stdin=True))
    assert started.stdin is not None
    os.write(started.stdin, b"one\ntwo\n")
    await started.close_stdin()
    await started.close_stdin()
    assert await drain(started.stdout) == b"got:one\ntwo\n"
    assert (await exited(started)).code == 0
    await started.release()


async def test_a_signal_reaches_the_leader(guest: Guest) -> None:
    script = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    started = await guest.start(new_id(), Command(("sh", "-c", script)))
    assert await read_some(started.stdout) == b"ready\n"
    await started.signal(signal.SIGTERM)
    assert (await exited(started)).code == 7
    await started.signal(signal.SIGTERM)
    await started.release()
    with pytest.raises(NoSuchExec):
        await started.signal(signal.SIGTERM)


async def test_a_signal_number_out_of_range_is_refused(guest: Guest) -> None:
    started = await guest.start(new_id(), Command(("sleep", "30")))
    with pytest.raises(SpecError):
        await started.signal(200)
    await started.release()


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (Command(("no-such-program",)), "argv"),
        (Command(("/etc/passwd",)), "argv"),
        (Command(("/",)), "argv"),
        (Command(("",)), "argv"),
        (Command(("true",), cwd="/no/such/dir"), "cwd"),
        (Command(("true",), user="nobody-of-that-name"), "user"),
        (Command(("true",), user="root:no-such-group"), "user"),
        (Command(("true",), env={"PATH": "/nonexistent"}), "argv"),
    ],
)
async def test_what_cannot_be_executed_is_told_by_its_field(
    guest: Guest, command: Command, field: str
) -> None:
    with pytest.raises(NoSuchProgram) as caught:
        await guest.start(new_id(), command)
    assert caught.value.field == field


@pytest.mark.parametrize("command", [Command(()), Command(("a\0b",)), Command(("true",), cwd="/\0")])
async def test_what_cannot_be_said_is_refused_before_it_is_sent(guest: Guest, command: Command) -> None:
    with pytest.raises(SpecError):
        await guest.start(new_id(), command)


async def test_a_long_command_line_works_and_a_longer_one_is_too_large(guest: Guest) -> None:
    assert len((await run(guest, "printf", "%s", "a" * 120_000)).stdout) == 120_000
    with pytest.raises(TooLarge):
        await guest.start(new_id(), Command(("printf", "%s", "a" * 170_000)))


async def test_the_environment_is_the_given_one_with_home_and_path(guest: Guest) -> None:
    result = await run(guest, "/usr/bin/env", env={"A": "1", "B": "x y=z"}, user="daemon")
    lines = set(result.stdout.decode().split("\n")[:-1])
    assert {"A=1", "B=x y=z", "HOME=/usr/sbin"} < lines
    assert [line for line in lines if line.startswith("PATH=")]
    assert len(lines) == 4
    kept = await run(guest, "/usr/bin/env", env={"HOME": "/h", "PATH": "/p"})
    assert set(kept.stdout.split()) == {b"HOME=/h", b"PATH=/p"}


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("root", "0:0"),
        ("daemon", "1:1"),
        ("1", "1:1"),
        ("daemon:tty", "1:5"),
        ("1:7", "1:7"),
        ("4242", "4242:0"),
        ("4242:4343", "4242:4343"),
    ],
)
async def test_users_are_those_of_the_inside(guest: Guest, user: str, ids: str) -> None:
    assert await sh(guest, "echo $(id -u):$(id -g)", user=user) == ids


async def test_a_user_namespace_makes_no_difference(userns_box: Inside) -> None:
    async with userns_box.guest() as guest:
        assert await sh(guest, "id -u; id -g; echo $HOME") == "0\n0\n/root"
        assert await sh(guest, "id -u", user="daemon") == "1"


async def test_a_command_gets_only_its_three_streams_and_no_blocked_signal(guest: Guest) -> None:
    assert (await run(guest, "ls", "/proc/self/fd")).stdout == b"0\n1\n2\n3\n"  # 3 is the directory
    status = await sh(guest, "grep -E '^Sig(Blk|Ign)' /proc/self/status")
    assert [line.split()[1] for line in status.split("\n")] == ["0" * 16, "0" * 16]


async def test_a_command_leads_its_own_session_and_has_the_usual_umask(guest: Guest) -> None:
    assert await sh(guest, "umask; cut -d' ' -f1,5,6 /proc/self/stat | cut -d' ' -f2 >/dev/null") == "0022"
    script = "read pid comm state ppid group session rest < /proc/$$/stat; [ $$ = $session ] && echo leads"
    assert await sh(guest, script) == "leads"


async def test_commands_may_open_as_many_files_as_they_are_told() -> None:
    with inside(nofile=77) as box:
        async with box.guest() as guest:
            assert await sh(guest, "ulimit -Sn; ulimit -Hn") == "77\n77"
            commands = [guest.start(new_id(), Command(("sleep", "30"))) for _ in range(60)]
            for started in await asyncio.gather(*commands):
                await started.release()


async def test_60_megabytes_come_through_the_pipes_whole(guest: Guest) -> None:
    script = "head -c 60000000 /dev/zero | tr '\\0' a; printf END"
    result = await run(guest, "sh", "-c", script)
    expected = hashlib.sha256(b"a" * 60_000_000 + b"END").digest()
    assert hashlib.sha256(result.stdout).digest() == expected


async def test_the_leaders_end_is_told_though_a_child_holds_its_output(guest: Guest) -> None:
    started = await guest.start(new_id(), Command(("sh", "-c", "sleep 100 & echo done")))
    assert (await exited(started, timeout=3)).code == 0
    assert os.read(started.stdout, 100) == b"done\n"
    with pytest.raises(BlockingIOError):
        os.read(started.stdout, 100)
    await started.release()


async def test_an_id_in_use_is_a_conflict_and_the_first_exec_is_unharmed(box: Inside) -> None:
    async with box.guest() as guest:
        exec_id = new_id()
        started = await guest.start(exec_id, Command(("sh", "-c", "sleep 0.5; echo fine")))
        with pytest.raises(Conflict):
            await guest.start(exec_id, Command(("true",)))
        async with box.guest() as second:
            with pytest.raises(Conflict):
                await second.start(exec_id, Command(("true",)))
            attached = await second.attach(exec_id)
            assert await drain(attached.stdout) == b"fine\n"
            await attached.release()
        started.detach()


async def test_a_cancelled_start_leaves_nothing(box: Inside, guest: Guest) -> None:
    for pause in (0, 0.0005, 0.001, 0.002):
        task = asyncio.create_task(guest.start(new_id(), Command(("sleep", "1000"))))
        await asyncio.sleep(pause)
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task.result().release()
    assert await sh(guest, "ps -e -o args= | grep -c '[s]leep 1000' || true") == "0"
