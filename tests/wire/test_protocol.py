"""The reader of the protocol: the same messages however the socket cuts them, errors for what is not one."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError

from dsec.bus.nats.connection import Connection
from dsec.bus.nats.protocol import DirectParser

Message = tuple[int, bytes, bytes, bytes, bytes]


class Heard:
    """The part of a connection that a parser talks to; subscription 9 belongs to nats-py."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.others: list[Message] = []
        self.pings = 0
        self.errors: list[str] = []

    def deliver(self, *message: Any) -> bool:
        if message[0] == 9:
            return False
        self.messages.append(message)
        return True

    async def _process_msg(self, *message: Any) -> None:
        self.others.append(message)

    async def _process_ping(self) -> None:
        self.pings += 1

    async def _process_err(self, error: str) -> None:
        self.errors.append(error)


def parser() -> tuple[Heard, DirectParser]:
    heard = Heard()
    return heard, DirectParser(cast("Connection", heard))


def packed(message: Message) -> bytes:
    sid, subject, reply, data, headers = message
    words = [subject, b"%d" % sid, *([reply] if reply else [])]
    if headers:
        words += [b"%d" % len(headers), b"%d" % (len(headers) + len(data))]
        return b"HMSG " + b" ".join(words) + b"\r\n" + headers + data + b"\r\n"
    return b"MSG " + b" ".join([*words, b"%d" % len(data)]) + b"\r\n" + data + b"\r\n"


tokens = st.text("abcxyz0189._-*", min_size=1, max_size=20).map(str.encode)
messages = st.tuples(
    st.integers(1, 12),
    tokens,
    st.one_of(st.just(b""), tokens),
    st.one_of(st.binary(max_size=200), st.just(b"MSG a 1 3\r\nabc\r\n")),
    st.sampled_from([b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\na: b\r\n\r\n"]),
)


@given(st.lists(messages, max_size=8), st.lists(st.integers(1, 60), min_size=1, max_size=8))
async def test_the_same_messages_arrive_however_the_bytes_are_cut(
    sent: list[Message], cuts: list[int]
) -> None:
    heard, reading = parser()
    stream = b"".join(b"PING\r\n" + packed(message) for message in sent)
    turn = 0
    while stream:
        size = cuts[turn % len(cuts)]
        await reading.parse(stream[:size])
        stream, turn = stream[size:], turn + 1
    assert heard.messages == [message for message in sent if message[0] != 9]
    assert heard.others == [message for message in sent if message[0] == 9]
    assert heard.pings == len(sent)


async def test_a_long_payload_in_many_pieces_is_whole() -> None:
    heard, reading = parser()
    message = (1, b"a.b", b"", bytes(range(256)) * 4000, b"")
    stream = packed(message) * 2
    for at in range(0, len(stream), 1 << 15):
        await reading.parse(stream[at : at + (1 << 15)])
    assert heard.messages == [message, message]


async def test_an_error_line_is_passed_on() -> None:
    heard, reading = parser()
    await reading.parse(b"-ERR 'Permissions Violation'\r\n")
    assert heard.errors == ["'permissions violation'"]


@pytest.mark.parametrize("line", [b"NONSENSE\r\n", b"MSG a 1 x\r\n", b"MSG a b 1\r\nx\r\n", b"x" * 5000])
async def test_what_is_no_protocol_is_an_error(line: bytes) -> None:
    _, reading = parser()
    with pytest.raises(ProtocolError):
        await reading.parse(line)


async def test_nothing_is_left_after_a_reset() -> None:
    heard, reading = parser()
    await reading.parse(b"MSG a 1 100\r\nhalf")
    reading.reset()
    await reading.parse(b"PING\r\n")
    assert heard.pings == 1
