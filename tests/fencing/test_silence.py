"""Whose silence counts, and how many may be declared dead at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.plugins.scheduler.silence import LEAST, SHARE, Patience, Silence, allowed

PATIENCE = Patience()
NODES = [f"n-{number}" for number in range(10)]


def ticking(silence: Silence, begin: float, end: float, *, connected: bool = True, heard: list[str]) -> float:
    """Tick once a second from `begin` to `end`, hearing `heard` each time; the time afterwards."""
    now = begin
    while now < end:
        silence.tick(now, connected=connected)
        for node in heard:
            silence.heard(node)
        now += PATIENCE.tick
    return now


def fresh() -> tuple[Silence, float]:
    """One that knows ten nodes, after its grace."""
    silence = Silence(PATIENCE)
    silence.know(NODES)
    return silence, ticking(silence, 0.0, PATIENCE.grace, heard=NODES)


def test_a_silent_node_is_suspect_after_5_s_and_due_after_75() -> None:
    silence, now = fresh()
    others = NODES[1:]
    now = ticking(silence, now, now + 4, heard=others)
    assert not silence.suspect("n-0")
    now = ticking(silence, now, now + 1, heard=others)
    assert silence.suspect("n-0")
    now = ticking(silence, now, now + 69, heard=others)
    assert silence.due() == []
    ticking(silence, now, now + 2, heard=others)
    assert silence.due() == ["n-0"]
    silence.heard("n-0")
    assert silence.due() == []
    assert not silence.suspect("n-0")


def test_time_without_a_broker_and_the_grace_after_it_do_not_count() -> None:
    silence, now = fresh()
    now = ticking(silence, now, now + 3600, connected=False, heard=[])
    now = ticking(silence, now, now + PATIENCE.grace, heard=[])
    assert max(silence.of(node) for node in NODES) <= PATIENCE.tick


def test_a_watcher_that_hears_nobody_blames_nobody() -> None:
    silence, now = fresh()
    ticking(silence, now, now + 3600, heard=[])
    assert silence.due() == []
    assert all(silence.suspect(node) for node in NODES)


def test_the_only_node_is_due_like_any_other() -> None:
    silence = Silence(PATIENCE)
    silence.know(["n-0"])
    ticking(silence, 0.0, PATIENCE.grace + PATIENCE.fail + 2, heard=[])
    assert silence.due() == ["n-0"]


def test_a_watcher_that_was_stopped_counts_no_more_than_two_ticks_for_it() -> None:
    silence, now = fresh()
    silence.tick(now, connected=True)
    silence.tick(now + 600, connected=True)
    assert silence.of("n-0") <= 2 * PATIENCE.tick + PATIENCE.tick


def test_a_node_that_is_not_known_is_never_due_and_a_new_one_is_given_time() -> None:
    silence, now = fresh()
    silence.know(NODES[1:])
    now = ticking(silence, now, now + 200, heard=NODES[1:])
    assert silence.due() == []
    silence.know(NODES)
    ticking(silence, now, now + 70, heard=NODES[1:])
    assert silence.due() == []


@given(st.integers(0, 400), st.integers(0, 50), st.integers(0, 400), st.integers(0, 50))
def test_no_more_than_a_fifth_or_one_fail_within_a_window(
    due: int, suspect: int, well: int, lately: int
) -> None:
    nodes = [f"n-{number}" for number in range(due)]
    total = due + suspect + well + lately
    chosen = allowed(nodes, silent=due + suspect, nodes=total, lately=lately)
    assert chosen in (nodes, [])
    if chosen:
        assert len(chosen) + lately <= max(LEAST, SHARE * total)
    if due == 1 and lately == suspect == 0:
        assert chosen == nodes


def test_two_of_three_that_are_cut_off_together_wait_though_one_is_due_first() -> None:
    assert allowed(["n-0"], silent=2, nodes=3, lately=0) == []
    assert allowed(["n-0"], silent=1, nodes=3, lately=0) == ["n-0"]
    assert allowed(["n-0"], silent=1, nodes=3, lately=1) == []
