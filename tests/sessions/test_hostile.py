"""What a command can do to its session: end it, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from dsec.bus.errors import SessionEnded
from dsec.bus.messages import Ended
from dsec.sdk import Sandbox

pytestmark = pytest.mark.node

EVERY = "for f in /proc/$$/fd/*; do {} done; echo done"


@pytest.mark.parametrize(
    "attack",
    [
        EVERY.format("[ ${f##*/} -gt 9 ] && echo 'E e-forged 0' >$f;"),
        EVERY.format("[ ${f##*/} -gt 9 ] && (yes >$f &);"),
        EVERY.format("[ ${f##*/} -gt 9 ] && (cat $f >/dev/null &);"),
        "(while kill -STOP $$; do :; done) & sleep 0.2",
    ],
)
async def test_who_spoils_the_channels_ends_the_session_at_most(sandbox: Sandbox, attack: str) -> None:
    async with sandbox.session() as sh, sandbox.session() as beside:
        await beside.run("A=beside")
        await sh.run(attack, timeout=1.5)
        with contextlib.suppress(SessionEnded):
            for _ in range(5):
                result = await sh.run("echo $((6 * 7))", timeout=1)
                assert result.stdout == "42\n" or result.ended is not Ended.EXIT
        assert (await beside.run("echo $A; (exit 3)")).stdout == "beside\n"
        assert (await sandbox.run(["true"])).ok


async def test_a_shell_that_dies_again_and_again_leaves_nothing(sandbox: Sandbox) -> None:
    async def one(number: int) -> None:
        async with sandbox.session() as sh:
            assert (await sh.run(f"sleep 100 & exit {number}")).code == number

    await asyncio.gather(*(one(number) for number in range(12)))
    assert int((await sandbox.run("ls -d /proc/[0-9]* | wc -l")).stdout) <= 4


async def test_a_crowd_of_processes_ends_with_its_session(sandbox: Sandbox) -> None:
    async with sandbox.session() as sh:
        await sh.run("for i in $(seq 300); do sleep 100 & done")
        assert (await sh.run("sleep 100", timeout=0.3)).ended is Ended.TIMEOUT
        with pytest.raises(SessionEnded):
            await sh.run("true")
    assert int((await sandbox.run("ls -d /proc/[0-9]* | wc -l")).stdout) <= 4
