"""Calls of a live platform: audit, repeats, drains, kills of the node and of the broker, the command line."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import time
from pathlib import Path

import orjson
import pytest

from dsec.bus import subjects
from dsec.bus.errors import BrokerDown, DeadlineExceeded, DsecError, NodeLost, NoSuchArtefact, Overloaded
from dsec.bus.home import default_node
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Received
from dsec.plugins.fncall.groups import Groups
from dsec.plugins.images.base import functions_image
from dsec.sdk import Client, FnFailed
from dsec.sdk.fn import Artefact
from dsec.sdk.testing import platform
from dsec.sdk.testing.plugin import add_functions

pytestmark = pytest.mark.node


def operator(part: platform.Part) -> Credentials:
    return Credentials.load(Path(part.ready["home"]) / "credentials" / "operator.json")


def twice(value: int) -> int:
    return 2 * value


async def test_a_call_is_one_audit_event_without_what_it_was_given(
    served: platform.Part, calls: Client
) -> None:
    heard: list[Received] = []
    async with Wire.connect(served.url, operator(served), "audit") as wire:
        await wire.subscribe(subjects.audit("fncall", "call", "*"), heard.append)
        await calls.call("print('a secret of the call')", key="audited")
        with contextlib.suppress(DsecError):
            await calls.call("1", image="never-imported", key="refused")
        async with asyncio.timeout(5):
            while len(heard) < 2:  # noqa: ASYNC110 - callbacks of the wire
                await asyncio.sleep(0.02)
    entries = [orjson.loads(one.data) for one in heard]
    assert [(one["target"], one["outcome"]) for one in entries] == [("audited", "ok"), ("", "no_such_image")]
    assert not any(b"a secret of the call" in one.data for one in heard)


async def test_a_repeated_operation_gets_the_first_answer(calls: Client) -> None:
    source = "import secrets\ndef f():\n    return secrets.token_hex(8)\n"
    values = await asyncio.gather(*(calls.call(source, entry="f", key="repeated") for _ in range(3)))
    assert len({one.value for one in values}) == 1
    assert (await calls.call(source, entry="f")).value != values[0].value


async def test_a_function_with_something_around_it_is_refused_before_it_travels(calls: Client) -> None:
    outer = 3

    def uses_it(value: int) -> int:
        return value * outer

    with pytest.raises(DsecError, match="outer"):
        await calls.call(uses_it, 1)
    with pytest.raises(DsecError, match="plain function"):
        await calls.call(print, 1)
    with pytest.raises(FnFailed, match="ValueError"):
        (await calls.call("def f():\n    raise ValueError('no')\n", entry="f")).get()


async def test_an_artefact_that_the_node_lacks_is_sent_again(calls: Client) -> None:
    content = b"never kept here"
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(NoSuchArtefact):
        await calls.call("cat f", language="sh", files={"f": Artefact(digest)})
    result = await calls.call("cat f", language="sh", files={"f": Artefact(digest, content)})
    assert result.stdout == content


async def test_a_drained_node_takes_no_calls(served: platform.Part, calls: Client) -> None:
    command = ("node", "drain", "--home", str(served.ready["home"]), default_node())
    await platform.command(*command)
    try:
        with pytest.raises(Overloaded, match="drained"):
            await calls.call(twice, 1, timeout=1.0)
    finally:
        await platform.command(*command, "--undo")
    assert (await calls.call(twice, 1)).value == 2


async def test_the_command_line_calls_and_judges(served: platform.Part, tmp_path: Path) -> None:
    home = str(served.ready["home"])
    (tmp_path / "f.py").write_text("def f(a, b):\n    return a + b\n")
    told = await platform.command(
        "fn", "call", "--home", home, str(tmp_path / "f.py"), "--entry", "f", "--args", "[1,2]"
    )
    assert told == "3\n"
    (tmp_path / "s.c").write_text('#include <stdio.h>\nint main(void) { puts("hi"); return 0; }\n')
    (tmp_path / "1.in").write_text("")
    (tmp_path / "1.out").write_text("hi")
    judged = await platform.command(
        "fn", "judge", "--home", home, "--json", str(tmp_path / "s.c"), "--cases", str(tmp_path)
    )
    assert orjson.loads(judged)["verdict"] == "AC"


@pytest.mark.kill
async def test_a_node_that_is_killed_leaves_nothing_of_its_calls(tmp_path: Path) -> None:
    await add_functions(tmp_path, await functions_image())
    mark = f"{int(time.time() * 1000) % 10**9}.125"
    part = await platform.spawn(tmp_path)
    async with part.client() as client:
        await client.call(twice, 1)
        running = [
            asyncio.ensure_future(client.call(f"sleep {mark}", language="sh", timeout=6)) for _ in range(3)
        ]
        await asyncio.sleep(1)
        assert _sleeping(mark) == 3
        await part.kill()
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(outcome, BrokerDown | NodeLost | DeadlineExceeded)
    async with asyncio.timeout(10):
        while _sleeping(mark):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.05)
    groups = Groups.here(tmp_path / "nodes" / default_node() / "calls")
    async with platform.running(tmp_path) as again, again.client() as client:
        assert not list(Path("/sys/fs/cgroup").glob(f"*/{groups.parent}"))
        assert not list((tmp_path / "nodes" / default_node() / "images" / "sandboxes").iterdir())
        assert (await client.call(twice, 2)).value == 4
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{groups.parent}"))


@pytest.mark.kill
async def test_a_broker_that_is_killed_costs_at_most_the_answers_under_way(tmp_path: Path) -> None:
    await add_functions(tmp_path, await functions_image())
    async with platform.running(tmp_path) as part, part.client() as client:
        await client.call(twice, 1)
        running = [
            asyncio.ensure_future(client.call("import time; time.sleep(1)", timeout=5)) for _ in range(3)
        ]
        await asyncio.sleep(0.5)
        os.kill(int(part.ready["broker_pid"]), signal.SIGKILL)
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, BrokerDown | NodeLost | DeadlineExceeded)
        assert (await client.call(twice, 3, timeout=20)).value == 6


def _sleeping(mark: str) -> int:
    return sum(f"sleep\0{mark}".encode() in _read(path) for path in Path("/proc").glob("[0-9]*/cmdline"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
