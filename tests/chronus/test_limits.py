"""Limits of one exec: which files they are, and on real hierarchies."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.bus.chronus.limits import apply, beside, oom_kills, settings
from dsec.bus.errors import Unsupported
from dsec.bus.spec import Limits

ALL = Limits(cpu=0.5, memory=64 << 20, pids=20)


def test_on_version_2_they_are_files_of_the_exec_itself() -> None:
    assert list(settings(ALL, frozenset())) == [
        ("memory", "memory.max", str(64 << 20)),
        ("memory", "memory.swap.max", "0"),
        ("pids", "pids.max", "20"),
        ("cpu", "cpu.max", "50000 100000"),
    ]


def test_on_version_1_they_are_the_older_files() -> None:
    assert [file for _, file, _ in settings(ALL, frozenset({"memory", "cpu", "pids"}))] == [
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
        "pids.max",
        "cpu.cfs_period_us",
        "cpu.cfs_quota_us",
    ]


def test_only_what_is_asked_for_is_set() -> None:
    assert list(settings(Limits(pids=9), frozenset())) == [("pids", "pids.max", "9")]
    assert list(settings(Limits(), frozenset())) == []


def test_a_unified_tree_gets_its_controllers_enabled_once(tmp_path: Path) -> None:
    sandbox, group = tmp_path, tmp_path / "e-1"
    group.mkdir()
    (sandbox / "cgroup.controllers").write_text("cpu memory pids\n")
    switch = sandbox / "cgroup.subtree_control"
    switch.write_text("cpu pids\n")
    assert apply(Limits(pids=20), group, {}) == ()
    assert switch.read_text() == "cpu pids\n"
    assert apply(Limits(memory=64 << 20), group, {}) == ()
    assert switch.read_text() == "+memory"
    assert (group / "memory.max").read_text() == str(64 << 20)
    assert (group / "pids.max").read_text() == "20"
    assert not (group / "memory.swap.max").exists()


def test_a_controller_that_nobody_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    (tmp_path / "e-1").mkdir()
    with pytest.raises(Unsupported) as refused:
        apply(Limits(cpu=1), tmp_path / "e-1", {})
    assert refused.value.field == "limits.cpu"


def test_what_lies_outside_the_hierarchy_has_no_place_on_the_others(tmp_path: Path) -> None:
    assert beside(tmp_path, Path("/sys/fs/cgroup")) == {}


def test_kills_for_memory_are_read_on_both_versions(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert oom_kills(tmp_path, {}) == 1
    assert oom_kills(tmp_path, {"memory": tmp_path}) == 3
    assert oom_kills(tmp_path / "gone", {}) == 0
