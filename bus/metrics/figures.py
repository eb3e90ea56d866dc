"""What the work itself counts: a few additions to plain numbers each time, no locks, no metric objects.

Counted by endpoint and project. Projects are bounded by iam, yet each is many series: those past `PROJECTS`
are counted together as `other`. Ids of principals, sandboxes and commands are never labels.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, TypeVar

from dsec.bus.metrics.names import Metric

ValueT = TypeVar("ValueT")
BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds: upper bounds of the histograms' buckets."""
_NS: Final = tuple(int(bound * 1e9) for bound in BOUNDS)
PROJECTS: Final = 64
OTHER: Final = "other"

Sample = tuple[Metric, tuple[str, ...], float]
"""A metric, its labels in the metric's order, the value."""
Source = Callable[[], Iterable[Sample]]
"""Asked when somebody looks; quick, since the event loop waits."""
Probe = Callable[[], Awaitable[None]]
"""Runs before the sources are asked, for what must be asked of others; bounded in time by the caller."""
Check = Callable[[], str]
"""Why a part does not serve; empty when it does."""


class Tally:
    """Requests of one kind: how long they took, by bucket, and the codes of those that failed.

    `shed`: of the failed ones, those refused before any work.
    """

    __slots__ = ("buckets", "codes", "ns", "shed")

    def __init__(self) -> None:
        self.buckets = [0] * (len(_NS) + 1)
        self.ns = 0
        self.codes: dict[str, int] = {}
        self.shed = 0

    def took(self, ns: int) -> None:
        """One was dealt with, in so many ns."""
        self.ns += ns
        self.buckets[bisect_left(_NS, ns)] += 1

    def failed(self, code: str) -> None:
        """One of those was answered with an error."""
        self.codes[code] = self.codes.get(code, 0) + 1

    def refused(self, code: str) -> None:
        """One was refused before any work; it is in no bucket."""
        self.shed += 1
        self.failed(code)

    @property
    def count(self) -> int:
        return sum(self.buckets) + self.shed


class Figures:
    """All that one part counts. `requests` by noun, verb and project, `creates` by backend and project."""

    def __init__(self, projects: int = PROJECTS) -> None:
        self.requests: dict[tuple[str, str, str], Tally] = {}
        self.creates: dict[tuple[str, str], Tally] = {}
        self.counts: dict[tuple[Metric, tuple[str, ...]], float] = {}
        self.sources: list[Source] = []
        self.probes: list[Probe] = []
        self.checks: list[Check] = []
        self._most = projects
        self._projects: set[str] = set()

    def project(self, project: str) -> str:
        """The label of `project`: itself, or `other` when it comes after too many others."""
        if project in self._projects or not project:
            return project
        if len(self._projects) >= self._most:
            return OTHER
        self._projects.add(project)
        return project

    def request(self, noun: str, verb: str, project: str = "") -> Tally:
        """Of requests `noun.verb` of a project."""
        found = self.requests.get((noun, verb, project))
        if found is None:
            found = self.requests.setdefault((noun, verb, self.project(project)), Tally())
        return found

    def create(self, backend: str, project: str) -> Tally:
        """Of creates on a node, from the order to the answer."""
        found = self.creates.get((backend, project))
        if found is None:
            found = self.creates.setdefault((backend, self.project(project)), Tally())
        return found

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        key = metric, labels
        self.counts[key] = self.counts.get(key, 0) + by

    @contextlib.contextmanager
    def telling(
        self, source: Source | None = None, *, probe: Probe | None = None, check: Check | None = None
    ) -> Iterator[None]:
        """Ask these, too, while the block runs."""
        with contextlib.ExitStack() as stack:
            if source is not None:
                stack.enter_context(_among(self.sources, source))
            if probe is not None:
                stack.enter_context(_among(self.probes, probe))
            if check is not None:
                stack.enter_context(_among(self.checks, check))
            yield


@contextlib.contextmanager
def _among(all_: list[ValueT], one: ValueT) -> Iterator[None]:
    all_.append(one)
    try:
        yield
    finally:
        all_.remove(one)
