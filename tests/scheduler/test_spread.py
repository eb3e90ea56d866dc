"""Placement of many at once: all that fit are placed, none over a node's size, and no node is flooded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.spec import GIB, MIB
from dsec.plugins.scheduler.placement import Ask, Candidate, Overcommit, load
from dsec.plugins.scheduler.spread import apportion

ASK = Ask("sim", cpu=0.5, memory=512 * MIB)
ONE = Overcommit(cpu=1.0, memory=1.0)


def node(name: str, cpu: float = 8, memory: int = 64, used: float = 0, *, healthy: bool = True) -> Candidate:
    return Candidate(
        node=name,
        backends=frozenset({"sim"}),
        cpu=cpu,
        memory=memory * GIB,
        cpu_used=used * cpu,
        memory_used=int(used * memory * GIB),
        healthy=healthy,
    )


Nodes = st.lists(
    st.builds(
        node,
        st.uuids().map(lambda one: f"n-{one}"),
        st.integers(1, 64),
        st.integers(1, 256),
        st.floats(0, 1),
        healthy=st.booleans(),
    ),
    max_size=30,
    unique_by=lambda one: one.node,
)


@given(Nodes, st.integers(1, 5000))
def test_what_fits_is_placed_and_no_more(nodes: list[Candidate], count: int) -> None:
    shares = apportion(ASK, count, nodes, ONE)
    by_name = {one.node: one for one in nodes}
    for name, share in shares.items():
        one = by_name[name]
        assert one.healthy
        assert share > 0
        assert one.cpu_used + share * ASK.cpu <= one.cpu + 1e-6
        assert one.memory_used + share * ASK.memory <= one.memory + 1024
    placed = sum(shares.values())
    assert placed <= count
    if placed < count:
        again = [one for one in nodes if one.healthy]
        for one in again:
            share = shares.get(one.node, 0)
            cpu, memory = one.cpu_used + (share + 1) * ASK.cpu, one.memory_used + (share + 1) * ASK.memory
            assert cpu > one.cpu - 1e-6 or memory > one.memory - 1024


@given(st.integers(1, 32_000), st.integers(1, 200))
def test_nodes_alike_get_alike(count: int, many: int) -> None:
    nodes = [node(f"n-{number}", cpu=128, memory=1024) for number in range(many)]
    shares = apportion(ASK, count, nodes, Overcommit())
    given_ = [shares.get(one.node, 0) for one in nodes]
    assert sum(given_) == min(count, many * 12_800)
    assert max(given_) - min(given_) <= 1


def test_the_emptiest_nodes_are_filled_first() -> None:
    empty, half, full = node("n-empty"), node("n-half", used=0.5), node("n-full", used=1.0)
    shares = apportion(ASK, 12, [empty, half, full], ONE)
    assert shares.get("n-full", 0) == 0
    assert shares["n-empty"] > shares.get("n-half", 0)
    after = load(node("n-empty", used=shares["n-empty"] / 16), ONE)
    assert after <= 0.7


def test_excluded_nodes_and_other_backends_get_nothing() -> None:
    ask = Ask("sim", 0.5, MIB, frozenset({"n-a"}))
    other = Ask("container", 0.5, MIB)
    assert apportion(ask, 3, [node("n-a"), node("n-b")]) == {"n-b": 3}
    assert apportion(other, 3, [node("n-a")]) == {}
    assert apportion(ask, 3, []) == {}
