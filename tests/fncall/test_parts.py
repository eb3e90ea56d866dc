"""Parts that need no node: room, artefacts, layouts of cgroups, what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from dsec.bus.caller import CallSpec, parse_call
from dsec.bus.errors import (
    LimitError,
    MissingTool,
    NoCapacity,
    NoSuchArtefact,
    Overloaded,
    SpecError,
    UnknownField,
)
from dsec.plugins.fncall.artefacts import Artefacts
from dsec.plugins.fncall.groups import parse_layout
from dsec.plugins.fncall.programs import program_of
from dsec.plugins.fncall.room import Room

V1 = "30 23 0:26 / /sys/fs/cgroup/{0} rw - cgroup cgroup rw,{0}\n"
V2 = "42 32 0:39 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


async def test_a_place_is_given_in_turn_and_taken_back() -> None:
    room, order = Room(1, 100, 10), []

    async def use(name: str) -> None:
        async with room.taken("p", 50, 5):
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*(use(name) for name in "abcd"))
    assert order == list("abcd")
    assert room.waiting == 0


async def test_a_large_call_is_not_passed_by_small_ones_for_ever() -> None:
    room, order = Room(4, 100, 10), []
    began = asyncio.Event()

    async def use(name: str, memory: int, until: asyncio.Event) -> None:
        async with room.taken(name, memory, 5):
            order.append(name)
            await until.wait()

    go = asyncio.Event()
    go.set()
    first = asyncio.create_task(use("half", 50, began))
    await asyncio.sleep(0)
    rest = [asyncio.create_task(use(*one, go)) for one in (("large", 75), ("small", 10))]
    await asyncio.sleep(0)
    assert order == ["half"]
    began.set()
    await asyncio.gather(first, *rest)
    assert order == ["half", "large", "small"]


async def test_a_project_leaves_room_for_others_and_waits_behind_those_with_less() -> None:
    room, order, gate = Room(4, 100, 10), [], asyncio.Event()

    async def use(project: str) -> None:
        async with room.taken(project, 1, 5):
            order.append(project)
            await gate.wait()

    greedy = [asyncio.create_task(use("greedy")) for _ in range(6)]
    await asyncio.sleep(0)
    assert order == ["greedy"] * 3
    modest = [asyncio.create_task(use("modest")) for _ in range(2)]
    await asyncio.sleep(0)
    assert order == ["greedy"] * 3 + ["modest"]
    gate.set()
    await asyncio.gather(*greedy, *modest)
    assert order[4] == "modest"
    assert len(order) == 8


async def test_who_cannot_have_a_place_is_told_which_way() -> None:
    room = Room(1, 100, 1)
    with pytest.raises(NoCapacity):
        async with room.taken("p", 76, 1):
            pass
    async with room.taken("p", 1, 1):
        with pytest.raises(Overloaded, match="within"):
            async with room.taken("p", 1, 0.01):
                pass
        waiting = asyncio.create_task(_held(room))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="too many"):
            async with room.taken("p", 1, 1):
                pass
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with room.taken("p", 75, 0.1):
        pass


async def _held(room: Room) -> None:
    async with room.taken("p", 1, 10):
        pass


async def test_artefacts_are_found_by_their_content_within_their_project(tmp_path: Path) -> None:
    store = Artefacts(tmp_path, 1000)
    digest = await store.put("p-one", b"content")
    assert digest == hashlib.sha256(b"content").hexdigest()
    assert await store.get("p-one", digest) == b"content"
    with pytest.raises(NoSuchArtefact):
        await store.get("p-two", digest)


async def test_the_artefact_that_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    store = Artefacts(tmp_path, 100)
    kept = [await store.put("p-one", bytes([n]) * 40) for n in range(2)]
    for age, digest in enumerate(reversed(kept)):
        os.utime(tmp_path / "p-one" / digest, (age, age))
    third = await store.put("p-one", b"x" * 40)
    assert await store.get("p-one", kept[0])
    assert await store.get("p-one", third)
    with pytest.raises(NoSuchArtefact):
        await store.get("p-one", kept[1])
    with pytest.raises(LimitError):
        await store.put("p-one", b"x" * 101)


async def test_a_damaged_artefact_is_not_given_out(tmp_path: Path) -> None:
    store = Artefacts(tmp_path, 100)
    digest = await store.put("p-one", b"right")
    (tmp_path / "p-one" / digest).write_bytes(b"wrong")
    (tmp_path / "p-one" / ".new-left").write_bytes(b"of a crash")
    with pytest.raises(NoSuchArtefact, match="damaged"):
        await store.get("p-one", digest)
    await store.put("p-one", b"other")
    assert [path.name[0] for path in (tmp_path / "p-one").iterdir()] != [".new-left"]


def test_hierarchies_are_found_in_either_layout() -> None:
    hybrid = parse_layout("".join(V1.format(name) for name in ("memory", "pids", "cpu", "cpuacct")) + V2)
    assert hybrid.v2 is None
    assert len(hybrid.roots) == 4
    unified = parse_layout(V2)
    assert unified.roots == (Path("/sys/fs/cgroup/unified"),)
    assert unified.at("memory") == unified.v2
    with pytest.raises(MissingTool):
        parse_layout(V1.format("memory"))


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(UnknownField, match="speed"):
        parse_call({"source": "1", "limits": {"speed": 1}})
    with pytest.raises(SpecError, match="either"):
        parse_call({"source": "1", "files": {"a": {}}})
    for name in ("/etc/x", "../x/", "a//b", ""):
        with pytest.raises(SpecError):
            parse_call({"source": "1", "files": {name: {"data": ""}}})
    with pytest.raises(SpecError):
        program_of(CallSpec(language="sh", source="f", entry="f"), {})
    with pytest.raises(SpecError, match="zero"):
        program_of(CallSpec(language="sh", source="a\0b"), {})
