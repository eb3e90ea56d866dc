"""The cgroup of an exec on the real hierarchy."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator

import pytest

from dsec.bus.chronus.cgroup import ExecCgroup, v2_root
from dsec.bus.errors import InfraError

pytestmark = pytest.mark.node


@pytest.fixture
def cgroup() -> Iterator[ExecCgroup]:
    made = ExecCgroup(v2_root() / f"dsec-test-{secrets.token_hex(4)}")
    yield made
    assert not made.path.exists()


def join(cgroup: ExecCgroup) -> subprocess.Popen[bytes]:
    """A process in `cgroup` that joined by writing "0" to the passed descriptor."""
    (procs,) = cgroup.open_procs()
    script = "echo 0 >&0; echo in; exec sleep 100"
    process = subprocess.Popen(["sh", "-c", script], stdin=procs, stdout=subprocess.PIPE)
    os.close(procs)
    assert process.stdout
    assert process.stdout.readline() == b"in\n"
    return process


async def test_kill_leaves_an_empty_cgroup_that_can_be_used_again(cgroup: ExecCgroup) -> None:
    cgroup.make()
    for _ in range(2):
        with join(cgroup) as process:
            assert cgroup.populated()
            await cgroup.kill()
            assert not cgroup.populated()
            assert process.wait(2) == -9
    await cgroup.remove()


async def test_remove_kills_and_may_be_repeated(cgroup: ExecCgroup) -> None:
    cgroup.make()
    cgroup.make()
    with join(cgroup) as process:
        await cgroup.remove(empty=True)
        assert process.wait(2) == -9
    await cgroup.remove()
    await cgroup.kill()
    assert not cgroup.populated()


def test_where_none_can_be_made_is_an_infra_error() -> None:
    with pytest.raises(InfraError, match="making the cgroup"):
        ExecCgroup(v2_root() / "no-such-parent" / "x").make()
