"""Leases of a budget: whatever order cores, nodes and clocks take, the quota is never exceeded."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dsec.bus.core.admission import (
    NOTHING,
    SKEW,
    Amount,
    Lease,
    Ledger,
    Purse,
    amount_of,
    cut,
    draw,
    hold,
    limit_of,
    room,
    silent,
    thousandths,
    wish,
)
from dsec.bus.projects import Quota
from dsec.bus.spec import Limits

CORES = st.sampled_from(["c-a", "c-b", "c-c"])
QUOTA = Quota(sandboxes=7, memory=40)
LEASE, GRACE, FRESH = 100_000, 20_000, 3000


@dataclass
class Order:
    """What a core has handed to a node."""

    charge: str
    core: str
    cost: Amount
    deadline: int


@dataclass
class Round:
    """A core on its way through read, look and write."""

    ledger: Ledger
    revision: int
    used: Amount | None = None


@dataclass
class Core:
    purse: Purse = field(default_factory=lambda: Purse(GRACE))
    seen: int = 0
    round: Round | None = None
    claimed: list[Order] = field(default_factory=list)


class Leasing(RuleBasedStateMachine):
    """Cores, one ledger and one registry; each step of each core may come between any two of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000
        self.ledger, self.revision = Ledger(), 0
        self.cores: dict[str, Core] = {}
        self.orders: list[Order] = []
        self.registered: list[Order] = []  # in the order of the registry; never shrinks
        self.live: list[Order] = []
        self.names = 0

    def core(self, name: str) -> Core:
        return self.cores.setdefault(name, Core())

    @rule(name=CORES, memory=st.integers(0, 20), patience=st.integers(1, 60_000))
    def create(self, name: str, memory: int, patience: int) -> None:
        core = self.core(name)
        self.names += 1
        order = Order(f"{name}-{self.names}", name, Amount(1, 0, memory), self.now + patience)
        order.deadline = min(order.deadline, core.purse.latest)
        if core.purse.reserve(order.charge, order.cost, now=self.now):
            core.claimed.append(order)

    @rule(name=CORES)
    def write_the_claims_and_order(self, name: str) -> None:
        core = self.core(name)
        for order in core.claimed:
            if self.now < core.purse.fresh:
                self.orders.append(order)
            else:
                core.purse.failed(order.charge)
        core.claimed = []

    @rule(name=CORES)
    def read_the_ledger(self, name: str) -> None:
        core = self.core(name)
        core.round = Round(self.ledger, self.revision)
        if core.purse.until <= self.now or name not in self.ledger.leases:
            core.purse.lapse()

    @rule(name=CORES)
    def look_into_the_registry(self, name: str) -> None:
        core = self.core(name)
        for order in self.registered[core.seen :]:
            core.purse.registered(order.charge)
        core.seen = len(self.registered)
        if core.round:
            core.round.used = sum((order.cost for order in self.live), NOTHING)

    @rule(name=CORES, waiting=st.integers(0, 5))
    def write_the_ledger(self, name: str, waiting: int) -> None:
        core = self.core(name)
        taken, core.round = core.round, None
        if taken is None or taken.used is None:
            return
        purse, one = core.purse, Amount(1, 0, 5)
        most = room(taken.ledger, name, taken.used, QUOTA, now=self.now)
        held = wish(purse.reserved, one.times(waiting), one, most)
        change = held - purse.held
        lower, raised = change.least(NOTHING), change.most(NOTHING)
        purse.given_up(lower)
        if taken.revision == self.revision:
            lease = Lease(held, self.now + LEASE, self.now + FRESH)
            self.ledger = hold(taken.ledger, name, lease, now=self.now)
            self.revision += 1
            purse.granted(raised, lease)

    @rule(name=CORES)
    def cut_the_leases_of_silent_cores(self, name: str) -> None:
        for silent_one in silent(self.ledger, name, now=self.now):
            waiting = [order.cost for order in self.orders if order.core == silent_one]
            self.ledger = cut(self.ledger, silent_one, sum(waiting, NOTHING), now=self.now)
            self.revision += 1

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def a_node_registers_a_sandbox(self, data: st.DataObject) -> None:
        order = self.orders.pop(data.draw(st.integers(0, len(self.orders) - 1)))
        if self.now <= order.deadline + GRACE:
            self.registered.append(order)
            self.live.append(order)

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def a_node_refuses_an_order(self, data: st.DataObject) -> None:
        order = self.orders.pop(data.draw(st.integers(0, len(self.orders) - 1)))
        self.core(order.core).purse.failed(order.charge)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def a_sandbox_is_destroyed(self, data: st.DataObject) -> None:
        self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))

    @rule(name=CORES)
    def a_core_dies_and_another_takes_its_place(self, name: str) -> None:
        self.cores.pop(name, None)
        renamed = {
            f"dead-{self.names}" if core == name else core: v for core, v in self.ledger.leases.items()
        }
        self.ledger = Ledger(renamed)
        self.revision += 1

    @rule(by=st.integers(1, 150))
    def time_passes(self, by: int) -> None:
        self.now += by

    @invariant()
    def the_quota_is_never_exceeded(self) -> None:
        used = sum((order.cost for order in self.live), NOTHING)
        assert used.over(limit_of(QUOTA)) is None

    @invariant()
    def no_core_hands_out_more_than_it_holds(self) -> None:
        for core in self.cores.values():
            assert core.purse.reserved.over(core.purse.held) is None


TestLeasing = Leasing.TestCase
TestLeasing.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


AMOUNT = st.builds(Amount, st.integers(0, 1000), st.integers(0, 10**6), st.integers(0, 1 << 40))


@given(reserved=AMOUNT, waiting=AMOUNT, most=AMOUNT)
def test_a_wish_is_at_most_the_room_and_at_least_what_was_handed_out(
    reserved: Amount, waiting: Amount, most: Amount
) -> None:
    wanted = wish(reserved, waiting, Amount(1, 1000, 1 << 30), most)
    assert wanted.over(most.most(reserved)) is None
    assert reserved.over(wanted) is None


def test_near_the_limit_nobody_keeps_a_spare() -> None:
    one = Amount(1, 0, 0)
    assert wish(NOTHING, one, one, Amount(8, 0, 0)) == one
    assert wish(NOTHING, one, one, Amount(1000, 0, 0)).sandboxes > 100


def test_unused_leases_come_back_when_their_time_is_up() -> None:
    ledger = hold(Ledger(), "c-dead", Lease(Amount(5), 100), now=0)
    quota = Quota(sandboxes=5)
    assert room(ledger, "c-new", NOTHING, quota, now=99) == limit_of(quota) - Amount(5)
    assert room(ledger, "c-new", NOTHING, quota, now=100) == limit_of(quota)
    assert "c-dead" not in hold(ledger, "c-new", Lease(Amount(1), 200), now=100).leases


def test_a_lease_that_is_not_renewed_is_cut_to_what_is_still_to_come() -> None:
    lease = Lease(Amount(5), until=100_000, fresh=3000)
    ledger = hold(Ledger(), "c-dead", lease, now=0)
    assert not silent(ledger, "c-new", now=3000 + SKEW - 1)
    assert not silent(ledger, "c-dead", now=50_000)
    assert silent(ledger, "c-new", now=3000 + SKEW) == {"c-dead": lease}
    assert cut(ledger, "c-dead", Amount(2), now=6000).leases["c-dead"].held == Amount(2)
    assert cut(ledger, "c-dead", Amount(9), now=6000).leases["c-dead"].held == Amount(5)
    assert not cut(ledger, "c-dead", NOTHING, now=6000).leases


@given(
    rate=st.floats(0.5, 5000),
    steps=st.lists(st.tuples(st.floats(0, 3), st.integers(0, 300)), max_size=50),
)
def test_no_more_tokens_are_drawn_than_flow_in(rate: float, steps: list[tuple[float, int]]) -> None:
    ledger, now, total = Ledger(), 100.0, 0
    for pause, waiting in steps:
        now += pause
        ledger, drawn, after = draw(ledger, waiting, rate, now=now)
        total += drawn
        assert drawn >= 0
        assert after >= 0
        assert total <= max(1.0, rate) + rate * (now - 100.0) + 1e-6


def test_a_clock_that_runs_behind_draws_nothing_twice() -> None:
    ledger, first, _ = draw(Ledger(), 10, 10.0, now=100.0)
    ledger, second, wait = draw(ledger, 10, 10.0, now=90.0)
    ledger, third, _ = draw(ledger, 10, 10.0, now=100.5)
    assert (first, second, third) == (10, 0, 5)
    assert wait == pytest.approx(0.1)


@given(st.floats(0.00001, 1024))
def test_thousandths_of_cores_are_rounded_up(cores: float) -> None:
    assert cores * 1000 <= thousandths(cores) < cores * 1000 + 1
    assert amount_of(Limits(cpu=cores, memory=1 << 30)) == Amount(1, thousandths(cores), 1 << 30)
