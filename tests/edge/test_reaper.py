"""When a sandbox is due."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsec.bus.driver import Handle
from dsec.plugins.container import ContainerDriver
from dsec.plugins.edge.reaper import due
from dsec.plugins.edge.sandboxes import Sandbox
from dsec.plugins.edge.trajectory import Trajectory
from tests.edge.test_journal import record


@pytest.mark.parametrize(
    ("idle_ttl", "now", "idle", "busy", "doomed", "reason"),
    [
        (None, 1.0, 1e9, False, False, None),
        (None, 10.0, 0.0, True, False, "time to live"),
        (5.0, 1.0, 4.9, False, False, None),
        (5.0, 1.0, 5.0, False, False, "idle"),
        (5.0, 1.0, 5.0, True, False, None),
        (None, 1.0, 0.0, False, True, "destroy"),
    ],
)
def test_a_sandbox_is_due_when_its_time_or_its_idleness_is_over(
    tmp_path: Path,
    idle_ttl: float | None,
    now: float,
    idle: float,
    busy: bool,
    doomed: bool,
    reason: str | None,
) -> None:
    kept = record()
    kept = kept.model_copy(
        update={"expires": 10_000, "spec": kept.spec.model_copy(update={"idle_ttl": idle_ttl})}
    )
    trajectory = Trajectory(tmp_path / "t")
    handle, driver = Handle(kept.sandbox, "container", 1, b""), ContainerDriver(tmp_path / "driver")
    sandbox = Sandbox(kept, handle, driver, None, tmp_path, tmp_path, trajectory, {}, used=100.0)
    sandbox.doomed = doomed
    running: Any = object()  # only whether there is one counts
    sandbox.running = {"e-0000": running} if busy else {}
    found = due(sandbox, now=now, monotonic=100.0 + idle)
    assert (found is None) == (reason is None)
    assert reason is None or reason in (found or "")
    trajectory.close()
