"""Quotas without a bus: what cores may hand out of a project's budget, leased so that none can exceed it.

A project's ledger says what each core holds of its budget. A core hands out only what it holds, and it holds
a sandbox's cost until it has seen the sandbox in the registry. So at any moment

    registered + held by all cores <= quota

and a grant that keeps this true in the ledger keeps it true everywhere: the ledger changes by
compare-and-set, and the registry is read after it. A lease counts until its time is up, whatever became of
its core; then nothing that the core handed out can become a sandbox any more. A core that did not renew it in
time has stopped handing out: its lease is cut to what its claims say is still to come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dsec.bus.projects import Quota
from dsec.bus.spec import Limits

SPARE: Final = 256
"""Creates of the size asked for that a core may hold besides those that wait."""
SHARE: Final = 8
"""The spare is at most this part of what is left, so that near the limit nobody sits on the rest."""
BURST: Final = 1.0
"""Seconds of `creates_per_second` that may be saved up."""
SKEW: Final = 2000
"""Milliseconds that two cores' clocks may differ, with room to spare."""
DRAW: Final = 0.1
"""Seconds of it that a core draws at once."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of sandboxes, thousandths of a core, and bytes."""

    sandboxes: int = 0
    cpu: int = 0
    memory: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.sandboxes + other.sandboxes, self.cpu + other.cpu, self.memory + other.memory)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.sandboxes - other.sandboxes, self.cpu - other.cpu, self.memory - other.memory)

    def times(self, factor: int) -> Amount:
        return Amount(self.sandboxes * factor, self.cpu * factor, self.memory * factor)

    def part(self, divisor: int) -> Amount:
        return Amount(self.sandboxes // divisor, self.cpu // divisor, self.memory // divisor)

    def least(self, other: Amount) -> Amount:
        """The smaller of each quantity."""
        return Amount(
            min(self.sandboxes, other.sandboxes), min(self.cpu, other.cpu), min(self.memory, other.memory)
        )

    def most(self, other: Amount) -> Amount:
        """The larger of each quantity."""
        return Amount(
            max(self.sandboxes, other.sandboxes), max(self.cpu, other.cpu), max(self.memory, other.memory)
        )

    def over(self, limit: Amount) -> str | None:
        """The first quantity that exceeds the one in `limit`."""
        if self.sandboxes > limit.sandboxes:
            return "sandboxes"
        if self.cpu > limit.cpu:
            return "cpu"
        return "memory" if self.memory > limit.memory else None


NOTHING: Final = Amount()
UNLIMITED: Final = 1 << 62


def amount_of(limits: Limits) -> Amount:
    """What a sandbox with these limits counts for; what has no limit counts nothing."""
    return Amount(1, thousandths(limits.cpu or 0.0), limits.memory or 0)


def thousandths(cores: float) -> int:
    """Rounded up, so that many small ones are never free."""
    return -int(-cores * 1000 // 1)


def limit_of(quota: Quota) -> Amount:
    """The quota as an amount."""
    cpu = UNLIMITED if quota.cpu is None else int(quota.cpu * 1000 + 1e-6)
    return Amount(
        UNLIMITED if quota.sandboxes is None else quota.sandboxes,
        cpu,
        UNLIMITED if quota.memory is None else quota.memory,
    )


@dataclass(frozen=True, slots=True)
class Lease:
    """What one core holds; it counts until `until`. The core hands out before `fresh` only (both unix ms).

    `since`: no claim that it answers for is older than this sequence of the claims.
    """

    held: Amount
    until: int
    fresh: int = 0
    since: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """A project's budget as all cores see it.

    `projects`: where its sandboxes may lie. `tokens`: creates that may be drawn at `at`, unix seconds.
    """

    leases: Mapping[str, Lease] = field(default_factory=dict)
    projects: frozenset[str] = frozenset()
    tokens: float | None = None
    at: float = 0.0

    def held(self, *, now: int, without: str = "") -> Amount:
        """What cores hold in all at `now`, unix ms."""
        total = NOTHING
        for core, lease in self.leases.items():
            if core != without and lease.until > now:
                total += lease.held
        return total


def room(ledger: Ledger, core: str, used: Amount, quota: Quota, *, now: int) -> Amount:
    """What `core` may hold at most."""
    return limit_of(quota) - used - ledger.held(now=now, without=core)


def wish(reserved: Amount, waiting: Amount, largest: Amount, most: Amount) -> Amount:
    """What a core asks for: what it has handed out, what waits, and a spare of a share of what is left.

    Never more than `most`, but always what it has handed out.
    """
    needed = reserved + waiting
    spare = largest.times(SPARE).least((most - needed).most(NOTHING).part(SHARE))
    return (needed + spare).least(most).most(reserved)


def hold(ledger: Ledger, core: str, lease: Lease, *, now: int) -> Ledger:
    """The ledger in which `core` has `lease`; leases that are over, and empty ones, are gone."""
    leases = {name: one for name, one in ledger.leases.items() if one.until > now and name != core}
    if lease.held != NOTHING:
        leases[core] = lease
    return replace(ledger, leases=leases)


def silent(ledger: Ledger, core: str, *, now: int) -> dict[str, Lease]:
    """Leases of other cores that were not renewed for so long that nothing is handed out under them."""
    return {
        name: lease
        for name, lease in ledger.leases.items()
        if name != core and lease.fresh + SKEW <= now < lease.until
    }


def cut(ledger: Ledger, core: str, to: Amount, *, now: int) -> Ledger:
    """The ledger in which a silent core holds at most `to`: what it has handed out and is not registered."""
    lease = ledger.leases[core]
    return hold(ledger, core, replace(lease, held=lease.held.least(to)), now=now)


def draw(ledger: Ledger, waiting: int, rate: float, *, now: float) -> tuple[Ledger, int, float]:
    """The ledger after a draw of whole tokens, how many, and seconds until the next one.

    A bucket of `BURST` seconds that fills at `rate` tokens a second; a draw takes what waits, or `DRAW`
    seconds' worth.
    """
    most = max(1.0, rate * BURST)
    saved = most if ledger.tokens is None else ledger.tokens + max(0.0, now - ledger.at) * rate
    saved = min(most, saved)
    drawn = min(int(saved), max(waiting, int(rate * DRAW)))
    left = saved - drawn
    after = replace(ledger, tokens=left, at=max(now, ledger.at))
    return after, drawn, max(0.0, 1.0 - left) / rate


class Purse:
    """What one core holds of one project's budget, and for which sandboxes. Times are unix ms.

    `grace`: a sandbox may be registered so long after its deadline.
    """

    def __init__(self, grace: int) -> None:
        self.grace = grace
        self.held = NOTHING
        self.reserved = NOTHING
        self.until = self.fresh = 0
        self._costs: dict[str, Amount] = {}

    @property
    def latest(self) -> int:
        """The last deadline that an order under this lease may have."""
        return self.until - self.grace

    @property
    def free(self) -> Amount:
        return self.held - self.reserved

    def reserve(self, charge: str, cost: Amount, *, now: int) -> bool:
        """Hand `cost` out, if it is held, and the lease is fresh and has time left."""
        if now >= min(self.fresh, self.latest) or cost.over(self.free):
            return False
        self._costs[charge] = cost
        self.reserved += cost
        return True

    def registered(self, charge: str) -> None:
        """The registry counts it from now on, so nobody holds it any more. Repeatable."""
        cost = self._costs.pop(charge, NOTHING)
        self.reserved -= cost
        self.held -= cost

    def failed(self, charge: str) -> None:
        """No sandbox can come of it any more: it is free again. Repeatable."""
        self.reserved -= self._costs.pop(charge, NOTHING)

    def given_up(self, change: Amount) -> None:
        """Hold so much less (`change` is negative) from now on, whether the ledger learns of it or not."""
        self.held += change

    def granted(self, change: Amount, lease: Lease) -> None:
        """The ledger has it; what was registered meanwhile has been taken off already."""
        self.held += change
        self.until, self.fresh = lease.until, lease.fresh

    def lapse(self) -> None:
        """The lease is over, and with it the deadline of everything that was handed out under it."""
        self.held = self.reserved = NOTHING
        self._costs.clear()
