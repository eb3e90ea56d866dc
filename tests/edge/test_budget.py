"""Budgets of output: quota, credit and look-ahead, against any order of events."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.frames import FRAME_BYTES
from dsec.plugins.edge.budget import AHEAD, Credit, publishable, share, take

sizes = st.integers(0, 3 * FRAME_BYTES)


@given(out=sizes, err=sizes, quota=sizes)
def test_a_share_fills_the_quota_exactly_and_tells_what_does_not_fit(out: int, err: int, quota: int) -> None:
    first, second, cut = share(out, err, quota)
    assert first <= out
    assert second <= err
    assert first + second == min(out + err, quota)
    assert cut == (out + err > quota)


@given(
    chunks=st.lists(st.integers(1, 2 * FRAME_BYTES), max_size=30),
    quota=st.integers(1, 20 * FRAME_BYTES),
    grants=st.lists(st.integers(1, 3 * FRAME_BYTES), max_size=30),
)
def test_a_stream_captures_its_quota_and_stays_within_credit(
    chunks: list[int], quota: int, grants: list[int]
) -> None:
    total, waiting, taken, published, limit, truncated = sum(chunks), 0, 0, 0, 0, False
    for event in range(len(chunks) + len(grants) + 1):
        waiting += chunks[event] if event < len(chunks) else 0
        limit = limit + grants[event] if event < len(grants) else limit
        bound = math.inf if event == len(chunks) + len(grants) else limit
        while True:
            what = take(waiting, taken=taken, published=published, quota=quota, limit=bound)
            assert what.bytes <= waiting
            taken += what.bytes
            waiting -= waiting if what.truncated else what.bytes
            truncated = truncated or what.truncated
            size = publishable(published=published, taken=taken, limit=bound)
            published += size
            assert published <= min(taken, bound)
            assert taken <= min(quota, published + AHEAD)
            if not (what.bytes or what.truncated or size):
                break
    assert taken == published == min(total, quota)
    assert truncated == (total > quota)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.floats(0.1, 60), st.floats(0, 100)), min_size=1),
    st.floats(0, 200),
)
def test_credit_never_goes_back_and_ends_with_its_lease(
    grants: list[tuple[int, float, float]], now: float
) -> None:
    credit = Credit()
    for offset, lease, at in grants:
        credit.grant(offset, lease, at)
    alive = any(at + lease > now for _, lease, at in grants)
    assert credit.limit(now) == (max(offset for offset, _, _ in grants) if alive else math.inf)


def test_a_detached_exec_is_not_held_back() -> None:
    credit = Credit()
    credit.grant(10, 60, 0)
    credit.detach()
    assert credit.limit(1) == math.inf
