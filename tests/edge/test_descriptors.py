"""Commands cannot take the descriptors that the node needs for everybody."""

import os
import resource
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.errors import LimitError, Overloaded
from dsec.plugins.edge import descriptors


@pytest.fixture
def few() -> Iterator[int]:
    """This process may have 400 descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, before[1]))
    yield 400
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_sandbox_with_too_many_commands_is_refused_another(few: int) -> None:
    most = descriptors.per_sandbox(few, few // 4)
    descriptors.room_for_command(most - 1)
    with pytest.raises(LimitError):
        descriptors.room_for_command(most)


def test_the_reserve_is_not_given_to_commands(few: int) -> None:
    descriptors.room_for_command(0)
    taken = []
    try:
        while descriptors.lowest_free() < few - few // 4:
            taken.append(os.dup(0))
        with pytest.raises(Overloaded):
            descriptors.room_for_command(0)
        os.close(taken.pop(len(taken) // 2))
        descriptors.room_for_command(0)
    finally:
        for descriptor in taken:
            os.close(descriptor)


@given(st.integers(64, 1 << 20))
def test_no_sandbox_gets_more_than_its_part(limit: int) -> None:
    reserve = min(descriptors.RESERVE, limit // 4)
    most = descriptors.per_sandbox(limit, reserve)
    assert 1 <= most <= descriptors.MOST
    assert most == 1 or most * descriptors.OF_A_COMMAND * descriptors.PARTS <= limit - reserve
