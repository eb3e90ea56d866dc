"""The twin on a real node: shells, ports, changes, and many threads at once."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

import dsec
from dsec.sdk.testing.platform import Part

pytestmark = pytest.mark.node
SERVER = "cd /tmp && echo served > file && exec python3 -m http.server 8000"


async def test_a_rollout_without_asyncio(live: Part) -> None:
    def rollout() -> None:
        with dsec.sync.Client(live.url, live.credentials) as client, client.sandbox(image="base") as sandbox:
            with sandbox.session() as shell:
                shell.run("cd /tmp; export A=1")
                assert shell.run("echo $PWD $A").stdout == "/tmp 1\n"
            server = sandbox.start(SERVER, detach=True)
            sandbox.wait_port(8000, path="/file", timeout=20)
            with sandbox.port(8000) as url, urllib.request.urlopen(f"{url}/file", timeout=10) as page:
                assert page.read() == b"served\n"
            server.kill()
            assert server.wait().signal == 9
            with closing(client.watch()) as changes:
                assert any(change.record.sandbox == sandbox.id for change in changes)

    await asyncio.to_thread(rollout)
    assert "dsec.sync" not in {thread.name for thread in threading.enumerate()}


async def test_each_of_many_threads_has_a_sandbox_of_one_client(live: Part) -> None:
    def rollouts() -> list[str]:
        with dsec.sync.Client(live.url, live.credentials) as client, ThreadPoolExecutor(6) as pool:

            def one(number: int) -> str:
                with client.sandbox(image="base") as sandbox:
                    sandbox.files.write("/n", str(number))
                    return sandbox.run("cat /n; echo", check=True).stdout

            return [*pool.map(one, range(12))]

    assert await asyncio.to_thread(rollouts) == [f"{number}\n" for number in range(12)]
