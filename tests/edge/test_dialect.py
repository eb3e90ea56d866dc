"""What a session's shell is told, by real shells."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.errors import SpecError, TooLarge
from dsec.plugins.edge import dialect
from dsec.plugins.edge.dialect import Dialect

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)


@given(texts)
def test_any_text_is_quoted_so_that_a_shell_reads_it_back(text: str) -> None:
    line = dialect.line(Dialect.SH, text, "e-1234", stdin=False).decode()
    quoted = line.removeprefix("\\command eval ").rpartition("\n\n{")[0]
    assert quoted.startswith("'")
    assert quoted.endswith("'")
    assert quoted[1:-1].replace("'\\''", "\0").count("'") == 0
    assert quoted[1:-1].replace("'\\''", "'") == text


@pytest.mark.parametrize("text", ["it's", "a\nb'", "''", "\\", "$x `y` !z", "ä\udcff"])
def test_a_real_shell_reads_it_back(text: str) -> None:
    line = dialect.line(Dialect.SH, text, "e-1234", stdin=False)
    quoted = line.removeprefix(b"\\command eval ").rpartition(b"\n\n{")[0]
    printed = subprocess.run([b"sh", b"-c", b"printf %s " + quoted], capture_output=True, check=True).stdout
    assert printed == text.encode("utf-8", "surrogateescape")


@given(
    st.from_regex(r"e-[a-z0-9]{4,32}", fullmatch=True), st.integers(0, 255), st.binary(min_size=1, max_size=4)
)
def test_a_status_is_told_exactly_and_nothing_beside_it(token: str, code: int, more: bytes) -> None:
    raw = f"E {token} {code}\n".encode()
    assert dialect.status(raw) == (token, code)
    assert dialect.status(raw + more) is None
    assert dialect.status(more + raw) is None


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"E e-a1b2 0\n", ("e-a1b2", 0)),
        (b"E e-a1b2 255\n", ("e-a1b2", 255)),
        (b"E e-a1b2 256\n", None),
        (b"E e-a1b2 \n", None),
        (b"E e-a1b2 0", None),
        (b"E e-a1b2 0\nE e-a1b2 0\n", None),
        (b"\nE e-a1b2 0\n", None),
        (b"", None),
    ],
)
def test_a_status_is_read_whole_or_not_at_all(raw: bytes, told: tuple[str, int] | None) -> None:
    assert dialect.status(raw) == told


def test_a_nul_and_what_no_pipe_takes_at_once_are_refused() -> None:
    with pytest.raises(SpecError) as refused:
        dialect.line(Dialect.BASH, "a\0b", "e-1234", stdin=False)
    assert refused.value.field == "argv"
    with pytest.raises(TooLarge):
        dialect.line(Dialect.BASH, "x" * dialect.LINE_BYTES, "e-1234", stdin=False)


def test_a_shell_is_spoken_to_by_its_name_and_its_room() -> None:
    assert Dialect.of("bash", None) is Dialect.BASH
    assert Dialect.of("/usr/local/bin/bash", 1024) is Dialect.BASH
    assert Dialect.of("bash", 64) is Dialect.BASH_CROWDED
    assert Dialect.of("/bin/dash", 1024) is Dialect.SH
    assert dialect.argv("/bin/sh")[-1] == f"/dev/fd/{dialect.COMMANDS}"
