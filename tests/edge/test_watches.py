"""What the edge keeps of a watch: bounded, given up when nobody reads, gone with the sandbox and told so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import pytest

import dsec
from dsec.bus.errors import LimitError, NoSuchSandbox, SpecError
from dsec.bus.file_events import Watched
from dsec.plugins.edge import file_watch, watches
from dsec.sdk import Sandbox
from dsec.sdk.link import new_operation
from tests.edge.support import Site, eventually, traces

pytestmark = pytest.mark.node


def instances() -> int:
    """inotify instances of this process."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += "inotify" in os.readlink(one)  # noqa: PTH115 - it names no file
    return found


async def ask(sandbox: Sandbox, name: str, **more: object) -> Watched:
    subject = sandbox._link.subject("file", "watch", sandbox.id)
    answer = await sandbox._link.call(subject, {"path": "/tmp", "watch": name, **more})
    return Watched.model_validate(answer or {})


async def none_left() -> bool:
    return instances() == 0


async def test_watches_are_bounded_and_one_that_nobody_reads_is_given_up(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "LEASE", 1.0)
    names = [new_operation() for _ in range(watches.MOST)]
    await asyncio.gather(*(ask(sandbox, name) for name in names))
    await ask(sandbox, names[0])
    assert instances() == watches.MOST
    with pytest.raises(LimitError) as caught:
        await ask(sandbox, new_operation())
    assert caught.value.field == "watches"
    await eventually(none_left)
    assert (await ask(sandbox, names[0], cursor=0)).gone


async def test_events_are_given_again_until_they_are_asked_past(sandbox: Sandbox) -> None:
    name = new_operation()
    await ask(sandbox, name)
    await sandbox.run("mkdir /tmp/a /tmp/b")
    both = await ask(sandbox, name, cursor=0)
    while len(both.events) < 2:
        both = await ask(sandbox, name, cursor=0)
    assert [event.path for event in both.events] == ["/tmp/a", "/tmp/b"]
    assert (await ask(sandbox, name, cursor=1)).events == both.events[1:]
    for wrong in (0, 3):
        with pytest.raises(SpecError):
            await ask(sandbox, name, cursor=wrong)
    await ask(sandbox, name, close=True)
    await ask(sandbox, name, close=True)
    assert (await ask(sandbox, name, cursor=2)).gone
    await eventually(none_left)


async def test_a_reader_that_is_slow_has_the_kernel_keep_the_rest(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "HELD", 8)
    await sandbox.files.mkdir("/w")
    async with sandbox.files.watch("/w") as events:
        await sandbox.run("cd /w; for i in $(seq 3000); do mkdir d$i; done")
        async with asyncio.timeout(20):
            told = [await anext(events) for _ in range(3000)]
        assert [event.path for event in told] == [f"/w/d{number}" for number in range(1, 3001)]


async def test_a_stop_ends_it_typed_and_another_project_sees_nothing(sandbox: Sandbox) -> None:
    async with sandbox.files.watch("/tmp") as events:
        reading = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)
        await sandbox.stop()
        with pytest.raises(SpecError, match="stopped"):
            await asyncio.wait_for(reading, 10)
        assert instances() == 0
        await sandbox.start()
        assert (await asyncio.wait_for(anext(events), 10)).kind == "restarted"
        await sandbox.run("mkdir /tmp/x")
        assert (await asyncio.wait_for(anext(events), 10)).path == "/tmp/x"


async def test_a_watch_outlives_the_edge_and_tells_the_gap(site: Site) -> None:
    async with site.client() as client, contextlib.AsyncExitStack() as block:
        async with site.edge():
            sandbox = await client.create(backend="container", image="base")
            events = await block.enter_async_context(sandbox.files.watch("/tmp", recursive=True))
            await sandbox.run("mkdir /tmp/a")
            assert (await asyncio.wait_for(anext(events), 10)).path == "/tmp/a"
        assert instances() == 0
        async with site.edge(drain=True):
            assert (await asyncio.wait_for(anext(events), 40)).kind == "restarted"
            await sandbox.run("mkdir /tmp/a/b")
            assert (await asyncio.wait_for(anext(events), 10)).path == "/tmp/a/b"
            await block.aclose()


async def test_a_sandbox_destroyed_while_watches_begin_leaves_nothing(site: Site, sandbox: Sandbox) -> None:
    opening = [asyncio.ensure_future(ask(sandbox, new_operation())) for _ in range(8)]
    await asyncio.sleep(0.005)
    await sandbox.destroy()
    for outcome in await asyncio.gather(*opening, return_exceptions=True):
        assert isinstance(outcome, (Watched, NoSuchSandbox, SpecError)), outcome
    await eventually(none_left)
    assert traces(site, sandbox.id) == []


async def test_the_command_line_and_the_sync_twin_tell_the_same(site: Site, sandbox: Sandbox) -> None:
    await sandbox.files.mkdir("/w/kept")
    credentials = site.stack.home.credentials / "u-admin.json"

    def twin() -> list[tuple[str, str]]:
        with (
            dsec.sync.Client(site.stack.url, credentials) as client,
            client.attach(sandbox.id).files.watch("/w", recursive=True) as events,
        ):
            return [(event.kind, event.path) for event in events]

    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dsec.sdk.cli", "watch", sandbox.id, "/w", "--recursive"),
        env={**os.environ, "DSEC_URL": site.stack.url, "DSEC_CREDENTIALS": str(credentials)},
        stdout=asyncio.subprocess.PIPE,
    )
    reading = asyncio.create_task(asyncio.to_thread(twin))

    async def both_watch() -> bool:
        return instances() == 2

    await eventually(both_watch)
    await sandbox.run("rm -r /w")
    told = await asyncio.wait_for(reading, 20)
    assert told == [("deleted", "/w/kept"), ("deleted", "/w")]
    out, _ = await asyncio.wait_for(program.communicate(), 20)
    assert out.decode() == "".join(f"{kind}\t{path}\n" for kind, path in told)
    assert program.returncode == 0
