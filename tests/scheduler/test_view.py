"""The view: who is healthy, and which of one's own placements a heartbeat already shows."""

from __future__ import annotations

import pytest

from dsec.bus.messages import Heartbeat
from dsec.plugins.scheduler.placement import Ask, Candidate
from dsec.plugins.scheduler.view import FORGET, LOST, OFFSET, SETTLE, SUSPECT, View

NOW_MS = 1_700_000_000_000
ASK = Ask("container", 1.0, 1 << 30)


def beat(*, epoch: int = 1, time: int = NOW_MS, draining: bool = False, cpu_used: float = 0) -> Heartbeat:
    return Heartbeat(
        node="n-one",
        epoch=epoch,
        time=time,
        backends={"container": []},
        cpu=8,
        memory=64 << 30,
        cpu_used=cpu_used,
        memory_used=0,
        sandboxes=0,
        draining=draining,
    )


def only(view: View, now: float) -> Candidate:
    (candidate,) = view.candidates(now)
    return candidate


def test_a_node_is_suspect_after_five_silent_seconds_and_well_again_with_a_heartbeat() -> None:
    view = View()
    view.heard(beat(), 100.0, NOW_MS)
    assert only(view, 100.0 + SUSPECT - 0.01).healthy
    assert not only(view, 100.0 + SUSPECT).healthy
    assert not view.alive("n-one", 100.0 + SUSPECT)
    view.heard(beat(), 110.0, NOW_MS)
    assert only(view, 110.0).healthy


@pytest.mark.parametrize("offset", [-OFFSET - 1, OFFSET + 1])
def test_a_node_whose_clock_is_off_gets_no_work_but_is_alive(offset: int) -> None:
    view = View()
    view.heard(beat(time=NOW_MS + offset), 100.0, NOW_MS)
    assert not only(view, 100.0).healthy
    assert view.alive("n-one", 100.0)


def test_a_draining_node_gets_no_work_but_is_alive() -> None:
    view = View()
    view.heard(beat(draining=True), 100.0, NOW_MS)
    assert not only(view, 100.0).healthy
    assert view.alive("n-one", 100.0)


def test_a_placement_counts_until_a_heartbeat_that_can_show_it() -> None:
    view = View()
    view.heard(beat(), 100.0, NOW_MS)
    view.placed("n-one", ASK, 100.1)
    view.placed("n-one", ASK, 100.9)
    assert (only(view, 100.9).cpu_used, only(view, 100.9).recent) == (2.0, 2)
    view.heard(beat(cpu_used=1.0), 101.0, NOW_MS)  # the second may still be on its way to the node
    assert (only(view, 101.0).cpu_used, only(view, 101.0).recent) == (2.0, 1)
    view.heard(beat(cpu_used=2.0), 101.0 + SETTLE, NOW_MS)
    assert (only(view, 102.0).cpu_used, only(view, 102.0).recent) == (2.0, 0)


def test_a_placement_that_nobody_confirms_is_dropped() -> None:
    view = View()
    view.heard(beat(), 100.0, NOW_MS)
    view.placed("n-one", ASK, 100.0)
    assert only(view, 100.0 + LOST - 0.1).recent == 1
    assert only(view, 100.0 + LOST).recent == 0


def test_the_last_word_of_a_former_process_changes_nothing() -> None:
    view = View()
    view.heard(beat(epoch=2), 100.0, NOW_MS)
    view.heard(beat(epoch=1, draining=True), 100.1, NOW_MS)
    assert only(view, 100.2).healthy


def test_a_node_that_is_long_gone_is_forgotten() -> None:
    view = View()
    view.heard(beat(), 100.0, NOW_MS)
    assert not list(view.candidates(100.0 + FORGET))
    assert not view.alive("n-one", 100.0 + FORGET)
