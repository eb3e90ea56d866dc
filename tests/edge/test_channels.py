"""Channels to the inside that break while the sandbox lives."""

from __future__ import annotations

import asyncio

import pytest

from dsec.bus.messages import State
from dsec.sdk import Sandbox
from tests.edge.support import Site

pytestmark = pytest.mark.node


async def test_a_broken_channel_is_made_again_and_commands_go_on(site: Site, sandbox: Sandbox) -> None:
    slow = await sandbox.start("for i in $(seq 100); do echo $i; sleep 0.01; done; exit 4")
    fed = await sandbox.start(["cat"], stdin_open=True)
    for _ in range(2):
        stolen = await site.driver.channel(sandbox.id)  # the newest connection wins
        await asyncio.sleep(0.3)
        stolen.socket.close()
    assert (await sandbox.run(["echo", "again"])).stdout == "again\n"
    await fed.write_stdin(b"through", eof=True)
    assert (await fed.wait()).stdout == "through"
    result = await slow.wait()
    assert (result.code, result.stdout) == (4, "".join(f"{number}\n" for number in range(1, 101)))
    assert (await sandbox.stat()).state is State.RUNNING
