"""The trajectory survives what may happen to the process that writes it."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from dsec.plugins.edge.trajectory import Entry, Trajectory


def entry(log: int, **more: object) -> Entry:
    return Entry(log, f"e-{log:04}", ["echo", "ü"], 1.5, None, 1024, **more)  # type: ignore[arg-type]


def test_a_later_process_finds_what_ran_and_how_it_ended(tmp_path: Path) -> None:
    first = Trajectory(tmp_path / "t")
    for number in (first.take_number(), first.take_number()):
        first.start(entry(number, detach=number == 2))
    first.end("e-0001", orjson.dumps({"ended": "exit", "code": 0}))
    first.close()
    second = Trajectory(tmp_path / "t")
    assert second.entries["e-0001"].ended == {"ended": "exit", "code": 0}
    assert second.entries["e-0002"] == entry(2, detach=True)
    assert second.take_number() == 3
    second.close()


@pytest.mark.parametrize("lost", [1, 10, 60])
def test_a_torn_line_is_ignored_and_the_next_one_whole(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "t"
    first = Trajectory(path)
    first.start(entry(1))
    first.start(entry(2))
    first.close()
    path.write_bytes(path.read_bytes()[:-lost])
    second = Trajectory(path)
    second.start(entry(3))
    second.close()
    third = Trajectory(path)
    third.close()
    assert {1, 3} <= {one.log for one in third.entries.values()}


def test_a_closed_trajectory_takes_nothing_and_closes_again(tmp_path: Path) -> None:
    closed = Trajectory(tmp_path / "t")
    closed.close()
    closed.close()
    closed.start(entry(1))
    assert (tmp_path / "t").read_bytes() == b""


def test_a_command_that_could_not_start_is_not_found_and_its_number_not_reused(tmp_path: Path) -> None:
    first = Trajectory(tmp_path / "t")
    first.start(entry(first.take_number()))
    first.failed("e-0001")
    first.close()
    second = Trajectory(tmp_path / "t")
    assert second.entries == {}
    assert second.take_number() == 2
    second.close()
