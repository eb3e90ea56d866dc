"""An agent that the sandbox has taken over: what it sends is a typed error and closes the channel."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from dsec.bus.chronus import guest as guest_module
from dsec.bus.chronus.cgroup import v2_root
from dsec.bus.chronus.guest import Command, Guest
from dsec.bus.chronus.protocol import EXIT, HEAD, REPLY_MAX, VERSION, Flag, Op
from dsec.bus.driver import Channel
from dsec.bus.errors import AgentCrippled, Unsupported
from tests.chronus.inside import new_id

Answer = Callable[[socket.socket, bytes], None]
"""What the agent does with a request."""


def reply(request: bytes, *, op: int = 0, error: int = 0, flags: int = 0, body: bytes = b"") -> bytes:
    _, asked, _, number, _ = HEAD.unpack_from(request)
    return HEAD.pack(VERSION, op or asked, flags, number, error) + body


@contextlib.asynccontextmanager
async def taken_over(tmp_path: Path, answer: Answer) -> AsyncIterator[Guest]:
    """A Guest whose agent answers pings truly and everything else by `answer`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()

    def serve() -> None:
        with contextlib.suppress(OSError):
            data, descriptors, _, _ = socket.recv_fds(theirs, 1 << 18, 16)
            for descriptor in descriptors:
                os.close(descriptor)
            if data and data[1] == Op.PING:
                theirs.send(reply(data))
            elif data:
                answer(theirs, data)
            else:
                loop.remove_reader(theirs.fileno())

    loop.add_reader(theirs.fileno(), serve)
    guest = await Guest.connect(Channel(ours, descriptors=True, cgroup=tmp_path))
    try:
        yield guest
    finally:
        loop.remove_reader(theirs.fileno())
        guest.close()
        theirs.close()


async def stat(guest: Guest) -> None:
    await guest.stat("/x")


async def list_(guest: Guest) -> None:
    await guest.list("/x")


async def read(guest: Guest) -> None:
    await guest.read("/x", 0, 10)


async def execs(guest: Guest) -> None:
    await guest.execs()


async def attach(guest: Guest) -> None:
    await guest.attach(new_id())


CALLS = [stat, list_, read, execs, attach]

GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "short": lambda _: b"\x02\x09",
    "noise": lambda _: os.urandom(500),
    "wrong version": lambda request: b"\x63" + reply(request)[1:],
    "unknown op": lambda request: reply(request, op=200),
    "another op": lambda request: reply(request, op=Op.SYMLINK),
    "unknown id": lambda request: HEAD.pack(VERSION, request[1], 0, 999_999, 0),
    "too long": lambda request: reply(request, body=b"a" * REPLY_MAX),
    "short exit": lambda request: reply(request, op=Op.EXITED, body=b"abc"),
    "exit code 4000": lambda request: reply(request, op=Op.EXITED, body=EXIT.pack(4000, 0, 0, 0) + b"e\0"),
    "signal 4000": lambda request: reply(request, op=Op.EXITED, body=EXIT.pack(-1, 4000, 0, 0) + b"e\0"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_closes_the_channel_with_a_typed_error(
    tmp_path: Path, kind: str, call: Callable[[Guest], Awaitable[None]]
) -> None:
    async with taken_over(tmp_path, lambda out, data: _send(out, GARBAGE[kind](data))) as guest:
        with pytest.raises(AgentCrippled):
            await asyncio.wait_for(call(guest), 5)
        await asyncio.wait_for(guest.wait_closed(), 10)
        with pytest.raises(AgentCrippled):
            await guest.ping()


def _send(out: socket.socket, data: bytes) -> None:
    out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    out.send(data)


@pytest.mark.parametrize(
    ("call", "body"),
    [
        (stat, b""),
        (stat, b"\0" * 27),
        (stat, b"\0" * 28 + b"name without end"),
        (stat, b"\0" * 30 * 2),
        (list_, b"\xff" * 100),
        (read, b"a" * 61_000 + b"b" * 1000),
        (execs, b"no end"),
        (attach, b""),
        (attach, EXIT.pack(0, 0, 0, 0)),
    ],
)
async def test_bodies_that_do_not_parse_close_the_channel(
    tmp_path: Path, call: Callable[[Guest], Awaitable[None]], body: bytes
) -> None:
    async with taken_over(tmp_path, lambda out, data: _send(out, reply(data, body=body))) as guest:
        with pytest.raises(AgentCrippled):
            await asyncio.wait_for(call(guest), 5)


@pytest.mark.parametrize("target", ["/dev/null", "/", "read-only"])
async def test_descriptors_that_are_no_pipes_are_refused_and_closed(tmp_path: Path, target: str) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (as procfs has it)

    def answer(out: socket.socket, data: bytes) -> None:
        if target == "read-only":
            made = list(os.pipe())  # a write end where a read end belongs
        else:
            made = [os.open(target, os.O_RDONLY), os.open(target, os.O_RDONLY)]
        socket.send_fds(out, [reply(data)], made)
        for descriptor in made:
            os.close(descriptor)

    async with taken_over(tmp_path, answer) as guest:
        with pytest.raises(AgentCrippled):
            await guest.attach(new_id())
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 (as procfs has it)


@pytest.mark.parametrize("count", [1, 3, 30])
async def test_descriptors_nobody_asked_for_are_closed(tmp_path: Path, count: int) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (as procfs has it)

    def answer(out: socket.socket, data: bytes) -> None:
        with Path("/dev/null").open("rb") as null:
            socket.send_fds(out, [reply(data)], [null.fileno()] * count)

    async with taken_over(tmp_path, answer) as guest:
        with pytest.raises(AgentCrippled):
            await guest.stat("/x")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 (as procfs has it)


@pytest.mark.parametrize("error", [1, 5, 71, 4095, 2**32 - 1])
async def test_any_errno_is_a_typed_error_that_is_not_retried_elsewhere(tmp_path: Path, error: int) -> None:
    async with taken_over(tmp_path, lambda out, data: _send(out, reply(data, error=error))) as guest:
        for call in CALLS:
            with pytest.raises(Exception, match=r".+") as caught:
                await call(guest)
            assert getattr(caught.value, "failure", "infra") != "infra"


@pytest.mark.node
async def test_a_start_that_is_refused_with_nonsense_leaves_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (as procfs has it)
    answer: Answer = lambda out, data: _send(out, reply(data, error=71, flags=0xFFFF))  # noqa: E731 (short)
    async with taken_over(tmp_path, answer) as guest:
        guest._cgroup = v2_root()
        name = f"dsec-test-{new_id()}"
        with pytest.raises(AgentCrippled):
            await asyncio.wait_for(guest.start(name, Command(("true",))), 5)
        assert not (v2_root() / name).exists()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 (as procfs has it)


async def test_an_agent_that_never_answers_is_crippled_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_module, "PATIENCE", 0.3)
    async with taken_over(tmp_path, lambda out, data: None) as guest:
        with pytest.raises(AgentCrippled, match="no answer to STAT"):
            await asyncio.wait_for(guest.stat("/x"), 3)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, pytest.raises(AgentCrippled, match="does not answer"):
        await Guest.connect(Channel(ours, descriptors=True, cgroup=tmp_path), timeout=0.2)


@pytest.mark.node
async def test_a_start_that_the_inside_holds_up_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(guest_module.CHILD_PATIENCE, Op.START, 0.2)
    async with taken_over(tmp_path, lambda out, data: None) as guest:
        guest._cgroup = v2_root()
        names = [f"dsec-test-{new_id()}" for _ in range(3)]
        for name in names:
            with pytest.raises(AgentCrippled, match="START does not end"):
                await asyncio.wait_for(guest.start(name, Command(("true",))), 3)
            await asyncio.sleep(0.3)
        await asyncio.wait_for(guest.ping(), 5)
        assert not any((v2_root() / name).exists() for name in names)


async def test_an_agent_that_reads_nothing_does_not_block_the_loop(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    guest = Guest(Channel(ours, descriptors=True, cgroup=tmp_path))
    call = asyncio.create_task(guest.write("/x", 0, bytes(5_000_000)))
    await asyncio.wait_for(asyncio.sleep(0.1), 1)
    assert not call.done()
    theirs.close()
    with pytest.raises(AgentCrippled):
        await asyncio.wait_for(call, 10)


async def test_a_flood_of_ends_nobody_waits_for_closes_the_channel(tmp_path: Path) -> None:
    def answer(out: socket.socket, data: bytes) -> None:
        for number in range(50):
            out.send(HEAD.pack(VERSION, Op.EXITED, 0, 0, 0) + EXIT.pack(0, 0, 0, 0) + b"e-%d\0" % number)
        out.send(reply(data, flags=Flag.NONE))

    async with taken_over(tmp_path, answer) as guest:
        with pytest.raises(AgentCrippled):
            await guest.execs()


async def test_a_list_of_execs_without_an_end_is_not_read_for_ever(tmp_path: Path) -> None:
    body = b"e-1\0" * 15_000
    answer: Answer = lambda out, data: _send(out, reply(data, flags=Flag.MORE, body=body))  # noqa: E731 (short)
    async with taken_over(tmp_path, answer) as guest:
        with pytest.raises(AgentCrippled, match="without an end"):
            await asyncio.wait_for(guest.execs(), 10)


async def test_a_byte_stream_is_not_taken_for_a_channel_with_descriptors(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(Unsupported):
        await Guest.connect(Channel(ours, descriptors=False, cgroup=tmp_path))
