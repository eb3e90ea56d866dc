"""Commands that are left: listed, found again by their id, read from an offset, written to, signalled."""

from __future__ import annotations

import asyncio
from signal import Signals

import pytest

from dsec.bus.errors import NoSuchExec, NoSuchSandbox, SpecError
from dsec.bus.messages import Ended
from dsec.sdk import Client, Sandbox

COUNT = "i=0; while [ $i -lt 50 ]; do echo line $i; i=$((i+1)); sleep 0.01; done"
LINES = "".join(f"line {i}\n" for i in range(50))


class DetachedSuite:
    async def test_commands_are_listed_with_what_became_of_them(self, sandbox: Sandbox) -> None:
        first = await sandbox.run(["sh", "-c", "exit 3", "x" * 2000])
        left = await sandbox.start("sleep 100", detach=True, timeout=60)
        async with sandbox.session() as sh:
            turn = await sh.run("true", durable=True)
            shown = await sandbox.start("read x", terminal=(9, 9))
            every = [info async for info in sandbox.execs()]
            running = {info.exec async for info in sandbox.execs(running=True)}
        assert [info.exec for info in every] == [first.exec, left.id, sh.id, turn.exec, shown.id]
        assert [info.kind for info in every] == ["command", "command", "session", "command", "terminal"]
        assert [info.log for info in every] == [1, 2, 3, 4, 5]
        assert running >= {left.id, sh.id, shown.id}
        assert first.exec not in running
        done, detached, _, in_session, _ = every
        assert done.end is not None
        assert (done.end.code, done.argv[:3], len(done.argv[3])) == (3, ["sh", "-c", "exit 3"], 500)
        assert (detached.end, detached.detach, detached.timeout) == (None, True, 60)
        assert in_session.session == sh.id
        await left.kill()

    async def test_a_long_list_comes_in_pages(self, sandbox: Sandbox) -> None:
        argument = "x" * 500
        made = [(await sandbox.start(["true", *([argument] * 19)], detach=True)).id for _ in range(40)]
        assert [info.exec async for info in sandbox.execs()] == made

    async def test_a_command_is_found_by_its_id_and_read_from_an_offset(
        self, client: Client, sandbox: Sandbox
    ) -> None:
        left = await sandbox.start(COUNT, detach=True)
        whole, rest = client.exec(sandbox.id, left.id), client.exec(sandbox.id, left.id, offset=100)
        results = await asyncio.gather(whole.wait(), rest.wait())
        assert [result.stdout for result in results] == [LINES, LINES[100:]]
        assert {result.code for result in results} == {0}
        again = await client.exec(sandbox.id, left.id).wait()
        assert again.stdout == LINES

    async def test_a_command_is_written_to_by_several_one_after_the_other(
        self, client: Client, sandbox: Sandbox
    ) -> None:
        left = await sandbox.start("cat", stdin_open=True)
        await left.write_stdin("one ")
        await client.exec(sandbox.id, left.id).write_stdin("two ")
        third = client.exec(sandbox.id, left.id)
        await third.write_stdin("three", eof=True)
        await third.close_stdin()
        assert (await left.wait()).stdout == "one two three"

    async def test_a_command_is_signalled_by_its_id(self, client: Client, sandbox: Sandbox) -> None:
        left = await sandbox.start("trap 'echo bye; exit 5' TERM; while :; do sleep 0.05; done", detach=True)
        await asyncio.sleep(0.3)
        found = client.exec(sandbox.id, left.id)
        await found.signal(Signals.SIGTERM)
        result = await found.wait()
        assert (result.ended, result.code, result.stdout) == (Ended.EXIT, 5, "bye\n")
        with pytest.raises(NoSuchExec):
            await found.signal(Signals.SIGTERM)
        with pytest.raises(NoSuchExec):
            await client.exec(sandbox.id, "e-neverwas").signal(Signals.SIGTERM)

    async def test_lists_of_nothing_are_typed(self, client: Client, sandbox: Sandbox) -> None:
        assert [info async for info in sandbox.execs()] == []
        await sandbox.destroy()
        with pytest.raises(NoSuchSandbox):
            _ = [info async for info in sandbox.execs()]
        with pytest.raises(SpecError):
            client.exec(sandbox.id, "not-an-id")
