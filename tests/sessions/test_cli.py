"""`dsec ps`, and limits of `dsec exec`."""

from __future__ import annotations

import pytest

from dsec.sdk import Sandbox
from tests.cli.conftest import Outcome, dsec_process
from tests.edge.support import Site

pytestmark = pytest.mark.node


async def dsec(site: Site, command: str, *argv: str) -> Outcome:
    credentials = site.stack.home.credentials / "u-admin.json"
    return await dsec_process(command, "--url", site.stack.url, "--credentials", str(credentials), *argv)


async def test_commands_are_listed_as_a_table_and_as_json(site: Site, sandbox: Sandbox) -> None:
    left = await sandbox.start("sleep 100", detach=True)
    await sandbox.run("exit 3", durable=True)
    async with sandbox.session() as sh:
        running = await dsec(site, "ps", sandbox.id)
        every = await dsec(site, "ps", "--all", "--json", sandbox.id)
    assert (running.code, every.code) == (0, 0)
    assert left.id in running.out
    assert "sleep 100" in running.out
    assert [(one["exec"], one["kind"]) for one in every.objects][::2] == [
        (left.id, "command"),
        (sh.id, "session"),
    ]
    await left.kill()


async def test_a_command_has_its_own_limits(site: Site, sandbox: Sandbox) -> None:
    hog = ("python3", "-c", "bytearray(200 << 20)")
    assert (await dsec(site, "exec", "--memory", "64M", sandbox.id, "--", *hog)).code == 137
    assert (await dsec(site, "exec", sandbox.id, "--", *hog)).code == 0
    refused = await dsec(site, "exec", "--memory", "100000G", sandbox.id, "--", *hog)
    assert (refused.code, "limit" in refused.err) == (125, True)
