"""Placement, for any cluster: only what fits, never the excluded, near the emptiest, no node flooded."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dsec.plugins.scheduler.placement import (
    BURST,
    SHARE,
    Ask,
    Candidate,
    Overcommit,
    choose,
    choose_many,
    fits,
    under_cap,
)

GIB = 1 << 30
ONE = Overcommit(cpu=1, memory=1)

candidates = st.builds(
    Candidate,
    node=st.uuids().map(lambda one: f"n-{one.hex[:12]}"),
    backends=st.sets(st.sampled_from(["container", "microvm"])).map(frozenset),
    cpu=st.floats(1, 256),
    memory=st.integers(GIB, 1024 * GIB),
    cpu_used=st.floats(0, 300),
    memory_used=st.integers(0, 1100 * GIB),
    recent=st.integers(0, 200),
    healthy=st.booleans(),
)
clusters = st.lists(candidates, max_size=20, unique_by=lambda one: one.node)
asks = st.builds(
    Ask,
    backend=st.sampled_from(["container", "microvm"]),
    cpu=st.floats(0.1, 64),
    memory=st.integers(1 << 20, 64 * GIB),
)


def node(name: str, *, used: float = 0, recent: int = 0) -> Candidate:
    return Candidate(name, frozenset({"container"}), 8, 64 * GIB, used, 0, recent)


@given(clusters, asks, st.randoms(use_true_random=False))
def test_the_chosen_node_fits_and_none_is_chosen_only_when_none_fits(
    cluster: list[Candidate], ask: Ask, rng: random.Random
) -> None:
    chosen = choose(ask, cluster, rng, ONE)
    fitting = {one.node for one in cluster if fits(ask, one, ONE)}
    assert (chosen in fitting) if fitting else (chosen is None)


@given(clusters, asks, st.randoms(use_true_random=False))
def test_an_excluded_node_is_never_chosen(cluster: list[Candidate], ask: Ask, rng: random.Random) -> None:
    excluded = frozenset(one.node for one in cluster[::2])
    chosen = choose(Ask(ask.backend, ask.cpu, ask.memory, excluded), cluster, rng, ONE)
    assert chosen not in excluded


@given(clusters, asks)
def test_a_fitting_node_never_promises_more_than_it_may(cluster: list[Candidate], ask: Ask) -> None:
    for one in cluster:
        if fits(ask, one, Overcommit(2, 3)):
            assert one.cpu_used + ask.cpu <= 2 * one.cpu
            assert one.memory_used + ask.memory <= 3 * one.memory
            assert one.healthy
            assert ask.backend in one.backends


@given(st.lists(candidates, min_size=1, max_size=20))
def test_the_cap_leaves_somebody_and_never_one_who_is_over_it(cluster: list[Candidate]) -> None:
    left = under_cap(cluster)
    fair = sum(one.recent for one in cluster) / len(cluster)
    assert left
    if any(one.recent < max(BURST, SHARE * fair) for one in cluster):
        assert all(one.recent < max(BURST, SHARE * fair) for one in left)


def test_an_empty_node_among_full_ones_is_not_flooded() -> None:
    rng = random.Random(7)
    cluster = {f"n-{i}": node(f"n-{i}", used=0.0 if i == 0 else 100.0) for i in range(10)}
    got: Counter[str] = Counter()
    for _ in range(1000):
        name = choose(Ask("container", 0.1, 1 << 20), cluster.values(), rng)
        assert name is not None
        got[name] += 1
        cluster[name] = node(name, used=cluster[name].cpu_used + 0.1, recent=got[name])
    assert got["n-0"] <= SHARE * 1000 / 10 + 1


def test_equal_nodes_get_nearly_equal_shares() -> None:
    rng = random.Random(7)
    cluster = {f"n-{i}": node(f"n-{i}") for i in range(20)}
    got: Counter[str] = Counter()
    for _ in range(4000):
        name = choose(Ask("container", 0.05, 1 << 20), cluster.values(), rng)
        assert name is not None
        got[name] += 1
        cluster[name] = node(name, used=got[name] * 0.05, recent=got[name])
    assert max(got.values()) - min(got.values()) <= 20


@given(clusters, asks, st.integers(1, 60), st.randoms(use_true_random=False))
def test_many_at_once_never_promise_more_than_a_node_may(
    cluster: list[Candidate], ask: Ask, count: int, rng: random.Random
) -> None:
    chosen = choose_many(ask, count, cluster, rng, ONE)
    assert len(chosen) <= count
    nodes = {one.node: one for one in cluster}
    for name, times in Counter(chosen).items():
        one = nodes[name]
        assert fits(ask, one, ONE)
        assert one.cpu_used + times * ask.cpu <= one.cpu * (1 + 1e-9)
        assert one.memory_used + times * ask.memory <= one.memory
    if any(fits(ask, one, ONE) for one in cluster):
        assert chosen


def test_many_at_once_are_spread_as_evenly_as_one_after_the_other() -> None:
    cluster = [node(f"n-{i}") for i in range(20)]
    got = Counter(choose_many(Ask("container", 0.05, 1 << 20), 2000, cluster, random.Random(7)))
    assert sum(got.values()) == 2000
    assert max(got.values()) - min(got.values()) <= 20
