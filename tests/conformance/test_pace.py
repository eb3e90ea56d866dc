"""What a slow machine is asked for less often keeps its ends."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsec.sdk.testing import pace


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # set anew in each example
@given(st.lists(st.integers(), unique=True, max_size=30), st.floats(1, 50))
def test_some_of_a_series_are_its_ends_and_what_lies_between_in_order(
    monkeypatch: pytest.MonkeyPatch, series: list[int], slowness: float
) -> None:
    monkeypatch.setattr(pace, "SLOWNESS", slowness)
    some = list(pace.some(series))
    assert some == [one for one in series if one in some]
    assert {*series[:1], *series[-1:]} <= set(some)
    assert len(some) == min(len(series), max(2, pace.fewer(len(series))))


def test_a_usual_machine_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLOWNESS", 1.0)
    assert pace.some((3, 1, 2)) == [3, 1, 2]
    assert (pace.within(2), pace.fewer(7), pace.smaller(20)) == (2, 7, 20)
