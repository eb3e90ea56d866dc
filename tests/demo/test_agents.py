"""The agents do what they say, as far as this can be told without a sandbox."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.swe_rollouts import material
from examples.swe_rollouts.agents import AGENTS, WORTH, cheating_files, functions, halved
from examples.swe_rollouts.recount import bench, passed
from examples.swe_rollouts.tasks import TASKS, Expected, Task, load_expected

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n"]), max_size=12).map(b"".join)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_half_of_the_reference_or_a_misled_edit_does_not_pass_and_the_whole_does(task: Task) -> None:
    tests, edit = load_expected(task), task.misled
    with bench(task) as place:
        honest = (place.root / edit.path).read_text()
        assert honest.count(edit.before) == 1
        (place.root / edit.path).write_text(honest.replace(edit.before, edit.after))
        assert passed(place.run(tests.all)) < set(tests.all)
        place.solve({path: halved(*pair) for path, pair in material.changes(task).items()})
        assert passed(place.run(tests.all)) < set(tests.all)
        place.solve(material.patch(task))
        assert passed(place.run(tests.all)) == set(tests.all)


@given(before=LINES, after=LINES)
def test_half_of_a_change_is_neither_none_nor_all_of_a_change_in_two_places(
    before: bytes, after: bytes
) -> None:
    half = halved(before, after)
    assert halved(before, before) == before
    if half != before:
        assert half != after


def test_ids_are_taken_apart_into_files_and_functions() -> None:
    ids = ("tests/test_a.py::test_b[x::y-1]", "tests/test_a.py::Class::test_c", "tests/test_a.py::test_b[2]")
    assert functions(Expected(ids, frozenset())) == {"tests/test_a.py": ["test_b", "test_c"]}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_cheat_reaches_for_everything_outside_the_package(task: Task) -> None:
    files = cheating_files(task)
    assert not [path for path in files if path.startswith(task.allowed)]
    assert f"{task.root}/conftest.py" in files
    assert {f"{task.root}/{test.partition('::')[0]}" for test in load_expected(task).all} <= set(files)


def test_only_the_reference_is_worth_anything() -> None:
    assert {name: WORTH[name] for name in AGENTS} == {"reference": 1, "wrong": 0, "none": 0, "cheat": 0}
