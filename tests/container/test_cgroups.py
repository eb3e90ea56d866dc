from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.errors import MissingTool
from dsec.bus.spec import Limits
from dsec.plugins.container.cgroups import CONTROLLERS, Cgroups, CpuClass, Layout, parse_layout, settings

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"

limits = st.builds(
    Limits,
    cpu=st.none() | st.floats(0.01, 1024),
    memory=st.none() | st.integers(4 << 20, 1 << 42),
    pids=st.none() | st.integers(4, 1 << 22),
)
classes = st.sampled_from(["latency", "besteffort"])
v1_sets = st.sets(st.sampled_from(CONTROLLERS)).map(frozenset)


def test_a_hybrid_machine_has_controllers_on_version_1_and_killing_on_version_2() -> None:
    layout = parse_layout(HYBRID)
    assert str(layout.v2) == "/sys/fs/cgroup/unified"
    assert {name: str(layout.at(name)) for name in CONTROLLERS} == {
        "memory": "/sys/fs/cgroup/memory",
        "pids": "/sys/fs/cgroup/pids",
        "cpu": "/sys/fs/cgroup/cpu,cpuacct",
    }


def test_a_unified_machine_has_everything_in_one_place() -> None:
    layout = parse_layout(UNIFIED)
    assert [str(root) for root in layout.roots] == ["/sys/fs/cgroup"]
    assert {str(layout.at(name)) for name in CONTROLLERS} == {"/sys/fs/cgroup"}


def test_a_machine_whose_version_2_lacks_controllers_is_told_which(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu io\n")
    with pytest.raises(MissingTool, match="no cgroup hierarchy has memory, pids: "):
        Cgroups(Layout(tmp_path, {}), "dsec/x").prepare()
    assert [entry.name for entry in tmp_path.iterdir()] == ["cgroup.controllers"]


def test_a_machine_without_version_2_is_told_what_to_mount() -> None:
    with pytest.raises(MissingTool, match="mount -t cgroup2"):
        parse_layout("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n")


@given(limits, classes, v1_sets)
def test_every_given_limit_is_written_and_no_other(
    limits: Limits, cpu_class: CpuClass, v1: frozenset[str]
) -> None:
    written = {controller for controller, _, _ in settings(limits, cpu_class, v1)}
    assert written == limits.asked()


@given(limits, classes, v1_sets)
def test_values_are_what_the_kernel_accepts(limits: Limits, cpu_class: CpuClass, v1: frozenset[str]) -> None:
    for controller, name, value in settings(limits, cpu_class, v1):
        assert name.startswith(controller + ".")
        numbers = [int(part) for part in value.split()]
        assert all(number >= 0 for number in numbers)
        if name in {"cpu.cfs_quota_us", "cpu.max"}:
            assert numbers[0] >= 1000
        if name == "cpu.weight":
            assert 1 <= numbers[0] <= 10_000
        if name == "cpu.shares":
            assert 2 <= numbers[0] <= 262_144


@given(st.floats(0.02, 1024), v1_sets)
def test_best_effort_yields_to_latency(cores: float, v1: frozenset[str]) -> None:
    def weight(cpu_class: CpuClass) -> int:
        found = settings(Limits(cpu=cores), cpu_class, v1)
        return next(int(value) for _, name, value in found if name in {"cpu.weight", "cpu.shares"})

    assert weight("besteffort") < weight("latency")


@given(st.integers(4 << 20, 1 << 42))
def test_no_layout_lets_a_sandbox_swap(size: int) -> None:
    v1 = dict(pair[1:] for pair in settings(Limits(memory=size), "latency", frozenset({"memory"})))
    v2 = dict(pair[1:] for pair in settings(Limits(memory=size), "latency", frozenset()))
    assert v1["memory.memsw.limit_in_bytes"] == v1["memory.limit_in_bytes"] == v2["memory.max"]
    assert v2["memory.swap.max"] == "0"
