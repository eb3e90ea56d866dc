"""Which processes are a command's own."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.chronus.cgroup import v2_root
from dsec.plugins.edge.processes import Process, before, foreground, members, send, table

SHELL, JOB, CHILD_OF_JOB, COMMAND, CHILD = 10, 11, 12, 13, 14
TREE = {
    SHELL: Process(1, 5),
    JOB: Process(SHELL, 6),
    CHILD_OF_JOB: Process(JOB, 9),
    COMMAND: Process(SHELL, 8),
    CHILD: Process(COMMAND, 9),
}


def test_a_commands_processes_are_told_from_the_shell_and_from_earlier_jobs() -> None:
    assert foreground(TREE, {SHELL, JOB}) == {COMMAND, CHILD}


def test_an_orphan_of_the_command_is_its_own_too() -> None:
    orphaned = {**TREE, CHILD: Process(1, 9)}
    assert foreground(orphaned, {SHELL, JOB}) == {COMMAND, CHILD}


def test_without_any_process_there_is_nothing_to_kill() -> None:
    assert foreground({}, {SHELL}) == frozenset()


@given(st.dictionaries(st.integers(2, 12), st.builds(Process, st.integers(0, 12), st.integers(0, 5))))
def test_whatever_the_tree_the_old_ones_are_spared(tree: dict[int, Process]) -> None:
    old = {pid for pid in tree if pid % 2}
    assert not foreground(tree, old) & old


def test_the_age_of_a_process_is_told_to_a_tick() -> None:
    with subprocess.Popen(["sleep", "60"]) as first:
        time.sleep(0.1)
        moment = time.time()
        time.sleep(0.1)
        with subprocess.Popen(["sleep", "60"]) as second:
            both = table([first.pid, second.pid, 1 << 22])
            assert both.keys() == {first.pid, second.pid}
            assert both[first.pid].parent == os.getpid()
            assert before(both, moment) == {first.pid}
            second.kill()
        first.kill()


@pytest.mark.node
def test_only_what_is_in_the_cgroup_is_signalled(tmp_path: Path) -> None:
    cgroup = v2_root() / f"dsec-test-{tmp_path.name}"
    cgroup.mkdir()
    try:
        with subprocess.Popen(["sleep", "60"]) as inside, subprocess.Popen(["sleep", "60"]) as outside:
            (cgroup / "cgroup.procs").write_text(str(inside.pid))
            assert members(cgroup) == {inside.pid}
            send(9, [inside.pid, outside.pid], cgroup)
            assert inside.wait(10) == -9
            assert outside.poll() is None
            outside.kill()
    finally:
        cgroup.rmdir()
    assert members(cgroup) == frozenset()
