"""Shedding: nothing while requests are quick, all when they are slow, and again nothing soon after."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.core.shedding import HIGH, LOW, SETTLE, SHARE, Shedder


class World:
    """A shedder under a clock of its own; `dice` is what it rolls."""

    def __init__(self, most: int = 1024) -> None:
        self.now = 1000.0
        self.dice = 0.0
        self.shedder = Shedder(most=most, clock=lambda: self.now, dice=lambda: self.dice)

    def serve(self, seconds: float, times: int = 100) -> None:
        """Requests that take so long, one after the other, beside one that stays."""
        with self.shedder.passing():
            for _ in range(times):
                if self.shedder.error() is None:
                    with self.shedder.passing():
                        self.now += seconds
                else:
                    self.now += seconds

    def sheds(self) -> bool:
        return self.shedder.error() is not None


@given(st.floats(0.0001, LOW * 0.99), st.integers(1, 200))
def test_quick_requests_are_never_shed(seconds: float, times: int) -> None:
    world = World()
    world.serve(seconds, times)
    assert world.shedder.shed == 0


def test_nearly_all_are_shed_while_requests_take_too_long() -> None:
    world = World()
    world.dice = 0.9999
    with world.shedder.passing():
        for _ in range(50):
            with world.shedder.passing():
                world.now += 2 * HIGH
        assert not world.sheds()  # the few by which a recovery is noticed
        world.dice = SHARE * 0.999
        assert world.sheds()


@given(st.floats(LOW * 1.1, HIGH * 0.9))
def test_between_the_bounds_chance_decides(seconds: float) -> None:
    world = World()
    world.dice = 1.0
    with world.shedder.passing():
        for _ in range(200):
            with world.shedder.passing():
                world.now += seconds
        world.dice = 0.0
        assert world.sheds()
        world.dice = 0.999
        assert not world.sheds()


def test_a_service_from_which_nothing_comes_back_sheds() -> None:
    world = World()
    with world.shedder.passing():
        assert not world.sheds()
        world.now += HIGH
        world.dice = SHARE * 0.999
        assert world.sheds()


def test_it_recovers_when_requests_are_quick_again() -> None:
    rng = random.Random(1)
    world = World()
    shedder = Shedder(clock=lambda: world.now, dice=rng.random)
    world.shedder = shedder
    world.serve(2 * HIGH, 200)
    assert shedder.delay() > LOW
    world.serve(0.001, int(100 * SETTLE / 0.001))
    shed = shedder.shed
    world.serve(0.001, 1000)
    assert shedder.shed == shed


def test_an_idle_service_takes_the_next_request() -> None:
    world = World()
    world.dice = 1.0
    world.serve(2 * HIGH, 20)
    world.dice = 0.0
    assert not world.sheds()


def test_what_is_over_the_bound_is_shed_at_once_and_told_when_to_come_again() -> None:
    world = World(most=2)
    with world.shedder.passing(), world.shedder.passing():
        error = world.shedder.error()
        assert error is not None
        assert error.retry_after
    assert not world.sheds()
