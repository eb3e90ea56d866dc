"""Limits as applied, and vetoes."""

from __future__ import annotations

import pytest

from dsec.bus.driver import Info
from dsec.bus.errors import NoCapacity, Unsupported
from dsec.bus.spec import GIB, MIB, Limits, Spec
from dsec.plugins.edge.admission import DEFAULT_LOG_BYTES, Capacity, Load, admit, applied, load

INFO = Info("container", 1, frozenset({"cpu", "memory", "pids"}), Limits(cpu=1, memory=GIB, pids=512))
BACKENDS = {"container": INFO}
ROOM = Capacity(cpu=4, memory=8 * GIB, sandboxes=3, memory_overcommit=2, cpu_overcommit=2)


def spec(**limits: object) -> Spec:
    return Spec.model_validate({"image": "base", "limits": limits})


def test_asked_limits_stand_and_the_rest_is_the_backends() -> None:
    found = applied(spec(pids=64), BACKENDS)
    assert found == Limits(cpu=1, memory=GIB, pids=64, log_bytes=DEFAULT_LOG_BYTES)


def test_the_node_itself_enforces_the_log_limit() -> None:
    assert applied(spec(log_bytes=4096), BACKENDS).log_bytes == 4096


@pytest.mark.parametrize("limits", [{"disk": GIB}, {"nofile": 64}, {"disk": GIB, "pids": 64}])
def test_a_limit_that_is_not_offered_is_refused_by_name(limits: dict[str, int]) -> None:
    with pytest.raises(Unsupported) as caught:
        applied(spec(**limits), BACKENDS)
    assert caught.value.field == f"limits.{min(limits)}"


def test_a_backend_that_is_not_there_is_refused() -> None:
    with pytest.raises(Unsupported) as caught:
        applied(Spec.model_validate({"image": "base", "backend": "microvm"}), BACKENDS)
    assert caught.value.field == "backend"


@pytest.mark.parametrize(
    ("now", "free", "draining", "why"),
    [
        (Load(3), 9 * GIB, False, "sandboxes"),
        (Load(1, memory=16 * GIB), 9 * GIB, False, "memory"),
        (Load(1, cpu=7.5), 9 * GIB, False, "cores"),
        (Load(), 10 * MIB, False, "disk"),
        (Load(), 9 * GIB, True, "draining"),
    ],
)
def test_what_does_not_fit_is_vetoed_with_its_reason(now: Load, free: int, draining: bool, why: str) -> None:
    with pytest.raises(NoCapacity, match=why):
        admit(Limits(cpu=1, memory=GIB), now=now, capacity=ROOM, disk_free=free, draining=draining)


def test_what_fits_is_taken() -> None:
    now = load([Limits(cpu=1, memory=GIB), Limits(cpu=0.5)])
    assert now == Load(2, 1.5, GIB)
    admit(Limits(cpu=1, memory=GIB), now=now, capacity=ROOM, disk_free=9 * GIB, draining=False)
