"""Sessions across restarts of the edge: the shell goes on, and so does the command that it runs."""

from __future__ import annotations

import asyncio

import pytest

from dsec.bus.errors import SessionEnded
from dsec.bus.messages import Ended
from dsec.sdk import Client, Session
from tests.edge.support import Site

pytestmark = pytest.mark.node


async def opened(client: Client) -> Session:
    sandbox = await client.create(backend="container", image="base")
    return await sandbox.session().open()


async def test_an_idle_session_goes_on_after_a_restart(site: Site) -> None:
    async with site.client() as client:
        async with site.edge():
            sh = await opened(client)
            await sh.run("A=1; cd /tmp")
        async with site.edge():
            assert (await sh.run("echo $A $PWD")).stdout == "1 /tmp\n"
        async with site.edge(drain=True):
            assert (await sh.run("echo $A $PWD")).stdout == "1 /tmp\n"


async def test_a_running_command_is_complete_after_a_restart(site: Site) -> None:
    loop = "for i in $(seq 400); do echo line $i; echo err $i >&2; sleep 0.005; done; (exit 5)"
    async with site.client() as client:
        async with site.edge():
            sh = await opened(client)
            running = await sh.start(loop)
            await asyncio.sleep(0.5)
        await asyncio.sleep(0.5)
        async with site.edge(drain=True):
            result = await running.wait()
            assert result.stdout == "".join(f"line {i}\n" for i in range(1, 401))
            assert result.stderr == "".join(f"err {i}\n" for i in range(1, 401))
            assert (result.ended, result.code) == (Ended.EXIT, 5)
            assert (await sh.run("echo $i")).stdout == "400\n"


async def test_a_command_that_ended_meanwhile_is_told_and_the_next_is_apart(site: Site) -> None:
    async with site.client() as client:
        async with site.edge():
            sh = await opened(client)
            running = await sh.start("echo one; sleep 0.5; echo two; (exit 4)")
        await asyncio.sleep(1)
        async with site.edge(drain=True):
            result = await running.wait()
            assert (result.code, result.stdout) == (4, "one\ntwo\n")
            assert (await sh.run("echo three")).stdout == "three\n"


async def test_a_shell_that_ended_meanwhile_is_told(site: Site) -> None:
    async with site.client() as client:
        async with site.edge():
            sh = await opened(client)
            running = await sh.start("sleep 0.4; echo last; exit 3")
        await asyncio.sleep(1)
        async with site.edge():
            result = await running.wait()
            assert (result.code, result.stdout) == (3, "last\n")
            with pytest.raises(SessionEnded) as ended:
                await sh.run("true")
            assert ended.value.exit_code == 3
        async with site.edge(drain=True):
            with pytest.raises(SessionEnded):
                await sh.run("true")
            assert (await sh.wait()).code == 3


async def test_a_terminal_goes_on_after_a_restart(site: Site) -> None:
    loop = (
        "stty -opost; for i in $(seq 300); do echo line $i; sleep 0.005; done; read x; echo got $x; stty size"
    )
    async with site.client() as client:
        async with site.edge():
            sandbox = await client.create(backend="container", image="base")
            running = await sandbox.start(loop, terminal=(30, 100))
            await asyncio.sleep(0.5)
        await asyncio.sleep(0.5)
        async with site.edge(drain=True):
            await running.resize(31, 101)
            await running.write_stdin("keys\r")
            result = await running.wait()
            lines = [line for line in result.stdout.splitlines() if line.startswith("line ")]
            assert lines == [f"line {i}" for i in range(1, 301)]
            assert result.stdout.splitlines()[-2:] == ["got keys", "31 101"]


async def test_jobs_of_earlier_commands_outlive_a_timeout_after_a_restart(site: Site) -> None:
    async with site.client() as client:
        async with site.edge():
            sh = await opened(client)
            await sh.run("sleep 100 & P=$!")
            await asyncio.sleep(0.1)
            running = await sh.start("sleep 100", timeout=2)
            await asyncio.sleep(0.3)
        async with site.edge(drain=True):
            assert (await running.wait()).ended is Ended.TIMEOUT
            assert (await sh.run("kill -0 $P && echo alive")).stdout == "alive\n"
