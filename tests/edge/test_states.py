"""The transition table of sandboxes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.errors import SpecError
from dsec.bus.messages import State
from dsec.plugins.edge.states import NEXT, change

states = st.sampled_from(State)


@given(states, states)
def test_a_change_is_made_or_refused_by_the_table(now: State, then: State) -> None:
    if then is now or then in NEXT[now]:
        assert change(now, then) is then
    else:
        with pytest.raises(SpecError) as caught:
            change(now, then)
        assert caught.value.field == "state"


@given(st.lists(states, max_size=20))
def test_no_sequence_of_changes_leaves_the_end(wanted: list[State]) -> None:
    now, ended = State.PENDING, False
    for then in wanted:
        if then is now or then in NEXT[now]:
            assert not ended or then is State.DESTROYED
            now = change(now, then)
            ended = ended or now is State.DESTROYED


def test_every_state_can_be_reached_and_can_end() -> None:
    reached, todo = {State.PENDING}, [State.PENDING]
    while todo:
        fresh = NEXT[todo.pop()] - reached
        reached |= fresh
        todo += fresh
    assert reached == set(State)
    assert all(State.DESTROYED in NEXT[state] for state in State if state is not State.DESTROYED)
