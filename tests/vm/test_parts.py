"""The parts of the test bed that need no machine: archives, results, what is left at home."""

import importlib.util
import os
import platform
import re
import stat
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vm import cargo, cpio, image, machine, tsc
from tests.vm.__main__ import joined, with_alone

names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=40)
entries = st.builds(cpio.file, names, st.binary(max_size=200), st.integers(0, 0o7777))


def unpacked(archive: bytes) -> list[cpio.Entry]:
    """What the kernel's unpacker reads: field by field, at offsets that are multiples of four."""
    found, at = [], 0
    while at < len(archive):
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        name = archive[at + 110 : at + 110 + fields[11]]
        assert name.endswith(b"\0")
        body = (at + 110 + fields[11] + 3) // 4 * 4
        data = archive[body : body + fields[6]]
        at = (body + fields[6] + 3) // 4 * 4
        if name != b"TRAILER!!!\0":
            found.append(cpio.Entry(name[:-1].decode(), fields[1], data, (fields[9], fields[10])))
    return found


@given(st.lists(entries, max_size=5), st.lists(entries, max_size=5))
def test_archives_one_after_another_are_read_as_they_were_written(
    first: list[cpio.Entry], second: list[cpio.Entry]
) -> None:
    archive = cpio.archive(first) + cpio.archive(second)
    assert len(archive) % 4 == 0
    assert unpacked(archive) == [*first, *second]


def test_kinds_of_entries_have_their_kinds_of_modes() -> None:
    made = [cpio.directory("d"), cpio.file("d/f", b"x"), cpio.link("l", "d/f")]
    assert unpacked(cpio.archive(made)) == made
    kinds = (stat.S_ISDIR, stat.S_ISREG, stat.S_ISLNK)
    assert [kind(entry.mode) for kind, entry in zip(kinds, made, strict=True)] == [True] * 3


def test_reports_that_follow_one_another_become_one() -> None:
    head = b'<?xml version="1.0" encoding="utf-8"?>'
    one, two = (
        head + b'<testsuites><testsuite name="%s" tests="1"/></testsuites>' % name for name in (b"a", b"b")
    )
    suites = list(ET.fromstring(joined(one + two)))
    assert [suite.get("name") for suite in suites] == ["a", "b"]
    assert list(ET.fromstring(joined(b""))) == []


def test_files_with_tests_that_have_to_be_alone_are_found() -> None:
    assert "tests/unified/test_cpu.py" in with_alone()
    assert "tests/conformance/test_container.py" not in with_alone()


async def test_sources_are_compiled_before_they_are_packed() -> None:
    await cargo.compile_sources()
    code = Path(importlib.util.cache_from_source(str(image.HERE / "cargo.py")))
    assert int.from_bytes(code.read_bytes()[8:12], "little") == int((image.HERE / "cargo.py").stat().st_mtime)


@given(st.integers(0, 255), st.binary(max_size=300), st.integers(0, 300))
def test_a_result_counts_only_when_it_is_whole(code: int, report: bytes, cut: int) -> None:
    told = b"result %d %d\n" % (code, len(report)) + report
    assert machine.parse_result(told) == machine.Result(code, report)
    assert machine.parse_result(told + b"x") is None
    if cut:
        assert machine.parse_result(told[:-cut]) is None


def test_a_file_without_a_name_is_open_and_nowhere() -> None:
    descriptor = cargo.nameless(4096)
    path = Path(cargo.path_of(descriptor))
    assert path.stat().st_size == 4096
    assert path.stat().st_nlink == 0
    path.write_bytes(b"kept")
    assert os.pread(descriptor, 10, 0) == b"kept"
    os.close(descriptor)
    assert not path.exists()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="another architecture's counter")
def test_the_counters_frequency_is_found_again() -> None:
    once, again = tsc.measured_khz(), tsc.measured_khz()
    assert 500_000 < once < 10_000_000
    assert abs(once - again) < once / 100


def test_what_is_left_at_home_is_not_what_the_tests_import() -> None:
    def left(path: str) -> bool:
        return any(re.search(pattern, path) for pattern in cargo.LEFT_AT_HOME)

    here = ".venv/lib/python3.11/site-packages"
    assert left(".git")
    assert left("build")
    assert left(f"{here}/mypy")
    assert not left(f"{here}/pytest")
    assert not left("plugins/images/build.py")
    assert not left(".venv/bin/python")
