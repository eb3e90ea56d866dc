"""Looking into pipes without taking anything out."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest

from dsec.bus.frames import Kind
from dsec.plugins.edge.pipes import Pipe, Pipes, Scratch


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    for descriptor in (read, write):
        try:
            os.close(descriptor)
        except OSError:
            continue


@pytest.mark.parametrize("size", [1, 4096, 30_000, 65_536])
def test_a_peek_copies_and_leaves_everything_in_the_pipe(pipe: tuple[int, int], size: int) -> None:
    read, write = pipe
    data = os.urandom(size)
    os.write(write, data)
    with Scratch.opened() as scratch:
        assert scratch.peek(read, size) == data
        assert scratch.peek(read, size) == data
    assert os.read(read, size) == data


def test_a_peek_sees_many_small_writes_in_a_large_pipe(pipe: tuple[int, int]) -> None:
    read, write = pipe
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 256 * 1024)
    for number in range(4000):
        os.write(write, b"%07d\n" % number)
    with Scratch.opened() as scratch:
        seen = scratch.peek(read, 32_000)
    assert seen == b"".join(b"%07d\n" % number for number in range(4000))


def test_a_peek_of_nothing_is_nothing(pipe: tuple[int, int]) -> None:
    with Scratch.opened() as scratch:
        assert scratch.peek(pipe[0], 0) == b""
        assert scratch.peek(pipe[0], 10) == b""


def test_a_pipe_ends_when_it_is_closed_and_empty(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.write(write, b"left")
    watched = Pipe(Kind.STDOUT, read)
    assert (watched.waiting(), watched.ended) == (4, False)
    os.close(write)
    assert (watched.waiting(), watched.ended) == (4, False)
    watched.drop()
    assert (watched.waiting(), watched.ended) == (0, True)


def test_an_abandoned_pipe_ends_though_somebody_holds_it(pipe: tuple[int, int]) -> None:
    watched = Pipe(Kind.STDERR, pipe[0])
    watched.waiting(abandoned=True)
    assert watched.ended


def test_pipes_take_turns(pipe: tuple[int, int]) -> None:
    pipes = Pipes(pipe[0], pipe[0])
    firsts = [pipes.in_turn()[0].kind for _ in range(4)]
    assert firsts == [Kind.STDOUT, Kind.STDERR] * 2


def test_a_cut_pipe_ends_with_what_was_in_it(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.write(write, b"mine")
    one = Pipe(Kind.STDOUT, read)
    one.cut()
    os.write(write, b"yours")
    assert one.waiting() == 4
    assert os.read(read, 3) == b"min"
    one.took(3)
    assert (one.waiting(), one.ended) == (1, False)
    one.drop()
    assert (one.waiting(), one.ended) == (0, True)
    assert os.read(read, 9) == b"yours"


def test_what_comes_between_two_cuts_is_nobodys(pipe: tuple[int, int]) -> None:
    read, write = pipe
    one = Pipe(Kind.STDOUT, read)
    os.write(write, b"mine")
    one.cut()
    os.write(write, b"nobody's")
    one.cut()
    os.write(write, b"next")
    assert one.waiting() == 4
    one.clear()
    assert os.read(read, 9) == b"next"
