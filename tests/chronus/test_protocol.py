"""The wire format: what is packed is parsed, what is not ours is refused, C and Python say the same."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.chronus import protocol
from dsec.bus.chronus.protocol import ENTRY, EXIT, HEAD, Exit, Flag, Malformed, Op, Stage

HEADER = Path(protocol.__file__).with_name("protocol.h").read_text("ascii")
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@given(st.binary(max_size=400))
def test_no_datagram_raises_anything_but_malformed(datagram: bytes) -> None:
    for parse in (
        protocol.parse,
        protocol.parse_exit,
        protocol.strings,
        lambda body: list(protocol.entries(body)),
    ):
        try:
            parse(datagram)
        except Malformed:
            continue


@given(st.sampled_from(Op), st.integers(0, 0xFFFF), st.integers(0, 2**32 - 1), st.binary(max_size=99))
def test_a_packed_head_is_parsed(op: Op, flags: int, number: int, body: bytes) -> None:
    reply = protocol.parse(protocol.pack(op, number, body, flags))
    assert (reply.op, reply.flags, reply.id, reply.error, reply.body) == (op, flags, number, 0, body)


@given(st.lists(NAMES, max_size=5))
def test_strings_come_back(names: list[str]) -> None:
    assert protocol.strings(b"".join(map(protocol.text, names))) == names


@given(NAMES, NAMES, st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1))
def test_entries_come_back(name: str, target: str, size: int, mtime_ns: int) -> None:
    packed = ENTRY.pack(size, mtime_ns, 1, 2, 3) + protocol.text(name) + protocol.text(target)
    first, second = protocol.entries(packed * 2)
    assert first == second
    assert (first.name, first.target, first.size, first.mtime_ns) == (name, target, size, mtime_ns)


@pytest.mark.parametrize(
    ("code", "signal", "expected"),
    [(0, 0, (0, None)), (255, 0, (255, None)), (-1, 9, (None, 9)), (-1, 64, (None, 64))],
)
def test_an_exit_is_a_code_or_a_signal(code: int, signal: int, expected: tuple[int, int]) -> None:
    ended, name = protocol.parse_exit(EXIT.pack(code, signal, 5, 6) + b"e-1\0")
    assert (ended, name) == (Exit(*expected, 5, 6), "e-1")


@pytest.mark.parametrize(("code", "signal"), [(-1, 0), (0, 9), (256, 0), (-2, 0), (-1, 65), (5, 1)])
def test_an_exit_that_cannot_be_is_malformed(code: int, signal: int) -> None:
    with pytest.raises(Malformed):
        protocol.parse_exit(EXIT.pack(code, signal, 0, 0))


def test_descriptors_come_with_attach_only() -> None:
    with pytest.raises(Malformed):
        protocol.parse(HEAD.pack(protocol.VERSION, Op.STAT, 0, 1, 0), (3,))
    with pytest.raises(Malformed):
        protocol.parse(HEAD.pack(protocol.VERSION, Op.ATTACH, 0, 1, 2), (3,))


def test_the_c_header_has_the_same_numbers() -> None:
    assert _enumeration("OP_") == {op.name: op.value for op in Op}
    assert _enumeration("STAGE_") == {stage.name: stage.value for stage in Stage}
    assert _enumeration("FLAG_") == {flag.name: flag.value for flag in Flag}
    for name in ("VERSION", "REQUEST_MAX", "REPLY_MAX", "DATA_MAX", "EXEC_ID_MAX"):
        given_there = re.search(rf"\b{name} = ([\d *]+),", HEADER)
        assert given_there
        assert eval(given_there[1], {}) == getattr(protocol, name)
    for name, struct in (("head", HEAD), ("exit_report", EXIT), ("entry", ENTRY)):
        assert f"sizeof(struct {name}) == {struct.size}," in HEADER


def _enumeration(prefix: str) -> dict[str, int]:
    """The members of a C enum, those without a number following the former."""
    found: dict[str, int] = {}
    for name, number in re.findall(rf"\b{prefix}([{string.ascii_uppercase}_]+)(?: = (\d+))?[, ]", HEADER):
        found[name] = int(number) if number else max(found.values(), default=0) + 1
    return found
