"""Watches of files: what changed and nothing else, in order, whatever the inside does meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from dsec.bus.errors import NoSuchFile, NoSuchSandbox, SpecError, Unsupported
from dsec.bus.file_events import FileEvent
from dsec.sdk import Client, FileWatch, Sandbox
from dsec.sdk.testing import pace

BURST = pace.fewer(10_000)
WITHIN = 20.0


@contextlib.asynccontextmanager
async def watched(sandbox: Sandbox, path: str = "/w", *, recursive: bool = False) -> AsyncIterator[FileWatch]:
    """A watch of a directory that is made for it; of a driver without them it is not asked."""
    await sandbox.files.mkdir("/w")
    async with contextlib.AsyncExitStack() as stack:
        try:
            events = await stack.enter_async_context(sandbox.files.watch(path, recursive=recursive))
        except Unsupported:
            pytest.skip("the backend watches no files")
        yield events


async def until(events: FileWatch, path: str) -> list[FileEvent]:
    """All up to the first that names `path`, without it."""
    found: list[FileEvent] = []
    async with asyncio.timeout(WITHIN):
        async for event in events:
            if path in {event.path, event.to}:
                return found
            found.append(event)
    raise AssertionError(f"the watch ended before {path}: {found}")


def short(events: list[FileEvent]) -> list[tuple[str, ...]]:
    return [(one.kind, one.path, *([one.to] if one.to else [])) for one in events]


class WatchSuite:
    async def test_each_change_is_told_once_and_in_order(self, sandbox: Sandbox) -> None:
        async with watched(sandbox) as events:
            await sandbox.run("cd /w; echo a > f; echo b >> f; mv f g; mkdir d; : > d/deep; rm g; : > end")
            assert short(await until(events, "/w/end")) == [
                ("created", "/w/f"),
                ("modified", "/w/f"),
                ("written", "/w/f"),
                ("modified", "/w/f"),
                ("written", "/w/f"),
                ("moved", "/w/f", "/w/g"),
                ("created", "/w/d"),
                ("deleted", "/w/g"),
            ]

    async def test_a_deep_tree_is_told_whole_however_fast_it_was_made(self, sandbox: Sandbox) -> None:
        async with watched(sandbox, recursive=True) as events:
            await sandbox.run("cd /w; mkdir -p a/b/c/d/e; echo x > a/b/c/d/e/f")
            seen = await until(events, "/w/a/b/c/d/e/f")
            deep = ["/w/a", "/w/a/b", "/w/a/b/c", "/w/a/b/c/d", "/w/a/b/c/d/e"]
            assert short(seen) == [("created", path) for path in deep]
            assert all(event.directory for event in seen)
            await sandbox.run("cd /w; rm -r a; : > end")
            gone = [one for one in short(await until(events, "/w/end")) if one[0] == "deleted"]
            assert gone == [("deleted", path) for path in ["/w/a/b/c/d/e/f", *reversed(deep)]]

    async def test_a_directory_that_moved_is_watched_under_its_new_name(self, sandbox: Sandbox) -> None:
        await sandbox.run("mkdir -p /w/a/b /elsewhere")
        async with watched(sandbox, recursive=True) as events:
            await sandbox.run("cd /w; mv a z; : > z/b/f")
            assert short(await until(events, "/w/z/b/f")) == [("moved", "/w/a", "/w/z")]
            await sandbox.run("mv /w/z /elsewhere/z; sleep 0.3; : > /elsewhere/z/b/g; : > /w/end")
            told = short(await until(events, "/w/end"))
            assert told[-1] == ("deleted", "/w/z")
            assert not any("g" in path for _, path in told)

    async def test_a_file_is_watched_by_its_name_also_when_it_is_replaced(self, sandbox: Sandbox) -> None:
        await sandbox.files.write("/w/f", "1")
        async with watched(sandbox, "/w/f") as events:
            await sandbox.run("cd /w; : > other; echo 2 > new; mv new f; rm f")
            async with asyncio.timeout(WITHIN):
                told = [await anext(events) for _ in range(2)]
            assert short(told) == [("moved", "/w/new", "/w/f"), ("deleted", "/w/f")]

    async def test_no_link_leads_out(self, sandbox: Sandbox) -> None:
        await sandbox.run("mkdir -p /w /real; ln -s / /w/out; ln -s ../../../../../../real /w/link")
        await sandbox.run("ln -s /real /name; ln -s /proc/self/root /w/root; ln -s /proc /procs")
        async with watched(sandbox, recursive=True) as events:
            await sandbox.run(": > /real/f; : > /w/end")
            assert await until(events, "/w/end") == []
        for path in ("/w/link", "/name"):
            async with watched(sandbox, path) as events:
                await sandbox.run(f": > /real/x; : > {path}/y")
                await until(events, f"{path}/y")
        for path in ("/proc", "/procs", "/dev/shm", "/w/root/w"):
            with pytest.raises((Unsupported, NoSuchFile)):
                async with sandbox.files.watch(path):
                    pass

    async def test_a_burst_comes_whole_or_the_loss_is_told(self, sandbox: Sandbox) -> None:
        async with watched(sandbox) as events:
            made = f"cd /w; i=0; while [ $i -lt {BURST} ]; do : > f$i; i=$((i+1)); done; : > end"
            await sandbox.run(made)
            told = await until(events, "/w/end")
            names = {event.path for event in told if event.kind == "created"}
            lost = any(event.kind == "overflow" for event in told)
            assert lost or names == {f"/w/f{number}" for number in range(BURST)}

    async def test_what_is_not_there_and_what_ends_is_typed(self, client: Client, sandbox: Sandbox) -> None:
        async with watched(sandbox) as events:
            with pytest.raises(NoSuchFile):
                async with sandbox.files.watch("/no/such"):
                    pass
            with pytest.raises(SpecError):
                async with sandbox.files.watch("relative"):
                    pass
            await sandbox.run("rmdir /w")
            async with asyncio.timeout(WITHIN):
                told = set(short([event async for event in events]))
            assert told == {("deleted", "/w")}, told
        async with watched(sandbox) as events:
            reading = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.2)
            await sandbox.destroy()
            with pytest.raises(NoSuchSandbox):
                await asyncio.wait_for(reading, WITHIN)

    async def test_a_pause_loses_nothing_and_is_not_ended_by_the_reader(
        self, sandbox: Sandbox, abilities: frozenset[str]
    ) -> None:
        if "pause" not in abilities:
            pytest.skip("it cannot pause")
        async with watched(sandbox) as events:
            await sandbox.run(": > /w/f")
            await sandbox.pause()
            assert short([await anext(events)]) == [("created", "/w/f")]
            assert (await sandbox.stat()).state == "paused"
