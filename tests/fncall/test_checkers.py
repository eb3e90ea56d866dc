"""Checkers: what counts as the same output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.caller import Checker
from dsec.plugins.fncall.checkers import difference

EXACT, TOKENS = Checker(), Checker(kind="tokens")
FLOATS = Checker(kind="floats", tolerance=1e-6)
WORDS = st.lists(st.binary(min_size=1).filter(lambda word: len(word.split()) == 1 and word == word.strip()))


@pytest.mark.parametrize(
    ("checker", "output", "expected", "same"),
    [
        (EXACT, b"1 2\n", b"1 2", True),
        (EXACT, b"1 2  \r\n\n\n", b"1 2", True),
        (EXACT, b"1  2", b"1 2", False),
        (EXACT, b"\n1", b"1", False),
        (EXACT, b"1\n2\n", b"1", False),
        (EXACT, b"", b"\n", True),
        (TOKENS, b"1\n\n2", b"1 2", True),
        (TOKENS, b"1 2 3", b"1 2", False),
        (TOKENS, b"1.0", b"1", False),
        (FLOATS, b"0.3333333", b"0.33333333", True),
        (FLOATS, b"1000000.5", b"1000000", True),
        (FLOATS, b"0.1", b"0.2", False),
        (FLOATS, b"yes 1.0", b"yes 1", True),
        (FLOATS, b"no 1", b"yes 1", False),
        (FLOATS, b"5", b"inf", False),
        (FLOATS, b"inf", b"inf", True),
        (FLOATS, b"nan", b"1", False),
    ],
)
def test_outputs_agree_or_not(checker: Checker, output: bytes, expected: bytes, same: bool) -> None:
    assert (difference(checker, output, expected) == "") is same


@given(WORDS, st.sampled_from([b" ", b"\n", b"  ", b"\t"]))
def test_tokens_do_not_care_for_the_space_between(words: list[bytes], space: bytes) -> None:
    assert difference(TOKENS, space.join(words), b" ".join(words)) == ""


@given(st.binary())
def test_every_output_agrees_with_itself(text: bytes) -> None:
    assert difference(EXACT, text, text) == ""
    assert difference(TOKENS, text, text) == ""


def test_a_difference_tells_where_it_is() -> None:
    assert difference(EXACT, b"1\n3", b"1\n2") == "line 2: '3', expected '2'"
    assert difference(TOKENS, b"1", b"1 2") == "1 words, expected 2"
