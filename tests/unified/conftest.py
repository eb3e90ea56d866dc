"""Sandboxes as for the tests of the container driver, and what the unified hierarchy tells of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container.conftest import Bench, bench, box, images
from tests.container.usage import group_of

__all__ = ["bench", "box", "images"]

UNIFIED = [
    pytest.mark.node,
    pytest.mark.vm,
    pytest.mark.skipif(
        "/sys/fs/cgroup cgroup2" not in Path("/proc/mounts").read_text(),
        reason="this machine's cgroups are not unified: make test-vm",
    ),
]


@pytest.fixture
def swap() -> Iterator[None]:
    """Swap in compressed memory, for the time of a test."""
    subprocess.run(["modprobe", "zram", "num_devices=1"], check=True)
    Path("/sys/block/zram0/disksize").write_text("512M")
    subprocess.run(["mkswap", "-q", "/dev/zram0"], check=True)
    subprocess.run(["swapon", "/dev/zram0"], check=True)
    yield
    subprocess.run(["swapoff", "/dev/zram0"], check=True)
    Path("/sys/block/zram0/reset").write_text("1")


def told(bench: Bench, sandbox: str, name: str) -> dict[str, int]:
    """A file of pairs in the sandbox's group: `cpu.stat`, `memory.events` and the like."""
    text = (group_of(bench.driver, sandbox, "memory") / name).read_text()
    return {key: int(value) for key, value in map(str.split, text.splitlines())}


def number(bench: Bench, sandbox: str, name: str) -> int:
    """A file of one number in the sandbox's group."""
    return int((group_of(bench.driver, sandbox, "memory") / name).read_text())
