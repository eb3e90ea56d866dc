"""Commands through a real edge, as a client sees them and as the log keeps them."""

from __future__ import annotations

import asyncio
import time

import orjson
import pytest

from dsec.bus import ids, subjects
from dsec.bus.errors import LimitError, NoSuchExec, NoSuchProgram, NoSuchSandbox, SpecError
from dsec.bus.frames import Kind, unpack
from dsec.bus.handlers import result
from dsec.bus.messages import Ended
from dsec.plugins.edge.node import spools_for
from dsec.sdk import Client, Sandbox
from tests.edge.support import Site, eventually, folded, stored

pytestmark = pytest.mark.node
PROJECT = "p-default"


def log_of(sandbox: Sandbox, exec_: str) -> str:
    return subjects.exec_stream(PROJECT, sandbox.id, exec_)


async def test_a_short_command_is_one_record(site: Site, sandbox: Sandbox) -> None:
    done = await sandbox.run("printf out; printf err >&2; exit 3")
    assert (done.stdout, done.stderr, done.code, done.log) == ("out", "err", 3, 1)
    [record] = await stored(site.stack, "EXEC", log_of(sandbox, done.exec))
    assert unpack(record.data).kind is Kind.INLINE


async def test_commands_are_numbered_in_the_sandboxs_order(sandbox: Sandbox) -> None:
    assert [(await sandbox.run(["true"])).log for _ in range(3)] == [1, 2, 3]


async def test_a_long_output_is_the_same_live_and_in_the_log(site: Site, sandbox: Sandbox) -> None:
    done = await sandbox.run("for i in $(seq 2000); do echo out$i; echo err$i >&2; done; seq 100000")
    out, err, fold = folded(await stored(site.stack, "EXEC", log_of(sandbox, done.exec)))
    assert out == done.stdout_bytes
    assert err == done.stderr_bytes == b"".join(b"err%d\n" % i for i in range(1, 2001))
    assert fold.end is not None


@pytest.mark.parametrize("quota", [1024, 5000, 32 * 1024, 100_000])
@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_case_14_truncation_is_exact(site: Site, sandbox: Sandbox, quota: int, more: int) -> None:
    done = await sandbox.run(f"head -c {quota + more} /dev/zero", log_bytes=quota)
    assert len(done.stdout_bytes) == min(quota, quota + more)
    assert done.truncated == (more > 0)
    records = await stored(site.stack, "EXEC", log_of(sandbox, done.exec))
    marks = [record for record in records if unpack(record.data).kind is Kind.TRUNCATED]
    assert len(marks) == (more > 0 and quota + more > 32 * 1024)


async def test_more_output_than_the_sandbox_allows_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(LimitError) as caught:
        await sandbox.run(["true"], log_bytes=1 << 40)
    assert caught.value.field == "log_bytes"


async def test_a_command_past_its_quota_runs_on(sandbox: Sandbox) -> None:
    done = await sandbox.run(
        "yes | head -c 3000000; echo end >/tmp/end; exit 5", log_bytes=10_000, timeout=20
    )
    assert (done.code, len(done.stdout_bytes), done.truncated) == (5, 10_000, True)
    assert (await sandbox.run(["cat", "/tmp/end"])).stdout == "end\n"


async def test_an_exec_ends_with_its_leader_and_takes_its_children_along(sandbox: Sandbox) -> None:
    started = time.monotonic()
    done = await sandbox.run("setsid sleep 97 & echo done")
    assert time.monotonic() - started < 20
    assert done.stdout == "done\n"
    assert (await sandbox.run("pgrep -x sleep || cat /proc/[0-9]*/comm")).stdout.count("sleep") == 0


async def test_a_timeout_kills_the_tree_and_keeps_the_output(sandbox: Sandbox) -> None:
    done = await sandbox.run("echo early; sleep 98 & sleep 98", timeout=0.5)
    assert (done.ended, done.stdout, done.code) == (Ended.TIMEOUT, "early\n", None)
    assert "sleep" not in (await sandbox.run("cat /proc/[0-9]*/comm")).stdout


async def test_a_timeout_shorter_than_a_short_command_holds(sandbox: Sandbox) -> None:
    done = await sandbox.run("echo x; sleep 9", timeout=0.02)
    assert done.ended is Ended.TIMEOUT
    assert done.wall_ms < 5000


async def test_a_repeated_start_runs_once_and_finds_its_output(site: Site, sandbox: Sandbox) -> None:
    first = await sandbox.run("echo x >>/count; cat /count", key="repeated")
    again = await sandbox.run("echo x >>/count; cat /count", key="repeated")
    assert first.stdout == again.stdout == "x\n"
    assert len(await stored(site.stack, "EXEC", log_of(sandbox, first.exec))) == 1


async def test_starts_of_one_key_at_once_share_one_command(sandbox: Sandbox) -> None:
    done = await asyncio.gather(
        *(sandbox.run("echo x >>/n; sleep 0.2; cat /n", key="same") for _ in range(4))
    )
    assert {one.stdout for one in done} == {"x\n"}


async def test_a_command_that_cannot_start_is_typed_and_may_be_tried_again(sandbox: Sandbox) -> None:
    for _ in range(2):
        with pytest.raises(NoSuchProgram):
            await sandbox.run(["/no/such"], key="cannot")


async def test_a_detached_command_is_answered_at_once_and_logged_whole(site: Site, sandbox: Sandbox) -> None:
    started = time.monotonic()
    running = await sandbox.start("sleep 4; seq 50000", detach=True)
    assert time.monotonic() - started < 3.9
    subject = log_of(sandbox, running.id)

    async def ended() -> bool:
        return folded(await stored(site.stack, "EXEC", subject))[2].end is not None

    await eventually(ended)
    assert folded(await stored(site.stack, "EXEC", subject))[0].endswith(b"\n50000\n")


async def ask(client: Client, site: Site, subject: str, **body: object) -> object:
    envelope = {"op": ids.new_operation(), "deadline": int(time.time() * 1000) + 5000, **body}
    async with site.stack.wire("u-admin") as wire:
        return result((await wire.request(subject, orjson.dumps(envelope), timeout=5)).data)


async def test_stdin_drops_what_it_has_and_refuses_a_gap(
    site: Site, client: Client, sandbox: Sandbox
) -> None:
    running = await sandbox.start(["cat"], stdin_open=True)
    subject = subjects.request("exec", "stdin", PROJECT, "u-admin", sandbox.id, running.id)
    assert await ask(client, site, subject, offset=0, data="YWJj") == {"offset": 3}
    assert await ask(client, site, subject, offset=0, data="YWJj") == {"offset": 3}
    assert await ask(client, site, subject, offset=1, data="YmNk") == {"offset": 4}
    with pytest.raises(SpecError) as caught:
        await ask(client, site, subject, offset=9, data="YQ==")
    assert caught.value.field == "offset"
    await ask(client, site, subject, offset=4, eof=True)
    assert (await running.wait()).stdout == "abcd"


async def test_a_large_stdin_arrives_whole(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 1500
    assert (await sandbox.run(["cat"], stdin=data, timeout=10)).stdout_bytes == data


async def test_a_command_that_does_not_read_its_stdin_ends_all_the_same(sandbox: Sandbox) -> None:
    assert (await sandbox.run(["true"], stdin=bytes(400_000), timeout=5)).code == 0


async def test_a_signal_to_an_ended_or_unknown_exec_is_typed(
    site: Site, client: Client, sandbox: Sandbox
) -> None:
    done = await sandbox.run(["true"])
    for exec_ in (done.exec, ids.exec_of("never")):
        subject = subjects.request("exec", "signal", PROJECT, "u-admin", sandbox.id, exec_)
        with pytest.raises(NoSuchExec):
            await ask(client, site, subject, signum=15)


async def test_a_reader_that_stops_holds_the_command_back(site: Site, sandbox: Sandbox) -> None:
    running = await sandbox.start("head -c 60000000 /dev/zero")
    first = await anext(aiter(running.stream()))
    assert first[1]
    await asyncio.sleep(1)
    held = sum(len(record.data) for record in await stored(site.stack, "EXEC", log_of(sandbox, running.id)))
    assert held < 10_000_000
    assert (await sandbox.run(["true"])).code == 0
    await running.close()


async def test_a_command_of_a_destroyed_sandbox_is_gone(sandbox: Sandbox) -> None:
    running = await sandbox.start("sleep 99")
    await sandbox.destroy()
    with pytest.raises(NoSuchSandbox):
        await sandbox.run(["true"])
    assert (await running.wait()).ended is Ended.SIGNAL


async def test_nothing_of_ended_commands_stays_on_the_node(site: Site, sandbox: Sandbox) -> None:
    await asyncio.gather(*(sandbox.run("seq 30000") for _ in range(5)))
    spools = spools_for(site.home) / sandbox.id

    async def empty() -> bool:
        return not list(spools.iterdir())

    await eventually(empty)
