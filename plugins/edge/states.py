"""The states of a sandbox and the changes between them: pure.

PENDING -> STARTING -> RUNNING <-> PAUSED;  RUNNING | PAUSED -> STOPPED -> STARTING -> RUNNING | STOPPED;
any -> DESTROYED;  any of them -> FAILED;  RUNNING -> UNKNOWN -> RUNNING | FAILED.
"""

from __future__ import annotations

from typing import Final

from dsec.bus.errors import SpecError
from dsec.bus.messages import State

_ENDS: Final = frozenset({State.FAILED, State.DESTROYED})
NEXT: Final[dict[State, frozenset[State]]] = {
    State.PENDING: frozenset({State.STARTING}) | _ENDS,
    State.STARTING: frozenset({State.RUNNING, State.STOPPED}) | _ENDS,
    State.RUNNING: frozenset({State.PAUSED, State.STOPPED, State.UNKNOWN}) | _ENDS,
    State.PAUSED: frozenset({State.RUNNING, State.STOPPED}) | _ENDS,
    State.STOPPED: frozenset({State.STARTING}) | _ENDS,
    State.UNKNOWN: frozenset({State.RUNNING}) | _ENDS,
    State.FAILED: frozenset({State.DESTROYED}),
    State.DESTROYED: frozenset(),
}


def change(now: State, then: State) -> State:
    """`then`, if it may follow `now`; staying is always allowed. Raises SpecError."""
    if then is not now and then not in NEXT[now]:
        raise SpecError(f"a sandbox that is {now.value} cannot become {then.value}", field="state")
    return then
