"""Releases are checked by their digests, and a workspace has nothing of its solution."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.bus.errors import InfraError
from examples.swe_rollouts import material
from examples.swe_rollouts.tasks import TASKS, Release, Task

each_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


@pytest.fixture(scope="module", autouse=True)
def _fetched() -> None:
    material.ensure()


@each_task
def test_a_workspace_is_the_older_release_with_the_newer_tests(task: Task, tmp_path: Path) -> None:
    top = material.workspace(task, tmp_path / "top")
    older, newer = (material.unpack(one, tmp_path) for one in (task.older, task.newer))
    assert files(top / task.package) == files(older / task.package)
    assert files(top / task.tests) == files(newer / task.tests)


@each_task
def test_a_workspace_has_no_changed_source_and_no_history(task: Task, tmp_path: Path) -> None:
    top = material.workspace(task, tmp_path / "top")
    patch, before = material.patch(task), files(top)
    assert patch
    assert all(before.get(path) != data for path, data in patch.items())
    assert not list(top.rglob(".git"))


@each_task
def test_a_patch_touches_only_what_grading_takes_over(task: Task) -> None:
    assert all(path.startswith(f"{task.package}/") for path in material.patch(task))
    assert task.allowed == (f"/workspace/{task.name}/{task.package}",)
    assert not task.tests.startswith(task.package)


def test_a_damaged_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEC_CACHE", str(tmp_path))
    (material.cache() / "wcwidth-0.2.12.tar.gz").write_bytes(b"something else")
    with pytest.raises(InfraError, match="missing or damaged"):
        material.unpack(TASKS["wcwidth"].older, tmp_path / "out")


def test_an_archive_with_another_digest_is_not_taken_from_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSEC_CACHE", str(tmp_path))
    task = TASKS["wcwidth"]
    forged = Release("wcwidth", task.older.version, "0" * 64)
    with pytest.raises(InfraError, match="could not fetch"):
        material.ensure([Task(forged, task.newer, task.package, task.tests, task.misled)])
    assert not list(material.cache().glob("wcwidth*"))


def test_the_toolkit_and_the_grader_lie_apart(tmp_path: Path) -> None:
    assert (material.toolkit(tmp_path) / "pytest" / "__init__.py").is_file()
    assert (material.grader(tmp_path) / "grade.py").is_file()
    assert {path.name for path in (tmp_path / "opt").iterdir()} == {"toolkit", "grader"}


def files(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}
