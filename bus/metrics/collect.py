"""What the running parts counted, as samples: made in the event loop when somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from dsec.bus.errors import BY_CODE, DsecError, Failure, Overloaded
from dsec.bus.metrics import names
from dsec.bus.metrics.figures import Figures, Probe, Sample, Tally
from dsec.bus.metrics.names import Metric
from dsec.bus.metrics.parts import Part
from dsec.bus.nats.wire import Wire
from dsec.bus.workload import Workload, workload_of

PROBE_WITHIN: Final = 1.0
"""Seconds that a scrape waits for what the broker must be asked for."""
Labels = tuple[str, ...]


@dataclass(slots=True)
class Histogram:
    """Counts by bucket, not cumulated, and the sum in seconds."""

    buckets: list[int]
    seconds: float = 0.0

    def add(self, tally: Tally) -> None:
        self.buckets = [one + more for one, more in zip(self.buckets, tally.buckets, strict=True)]
        self.seconds += tally.ns / 1e9


@dataclass(slots=True)
class Snapshot:
    """Values and histograms by metric and labels, the common labels first; what is alike is summed."""

    values: dict[Metric, dict[Labels, float]] = field(default_factory=lambda: defaultdict(dict))
    histograms: dict[Metric, dict[Labels, Histogram]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, metric: Metric, labels: Labels, value: float) -> None:
        known = self.values[metric]
        known[labels] = known.get(labels, 0) + value

    def time(self, metric: Metric, labels: Labels, tally: Tally) -> None:
        known = self.histograms[metric]
        if labels not in known:
            known[labels] = Histogram([0] * len(tally.buckets))
        known[labels].add(tally)


async def snapshot(parts: Iterable[Part]) -> Snapshot:
    """All that the parts tell now."""
    parts = list(parts)
    found = Snapshot()
    trips = await asyncio.gather(*(_round_trip(part) for part in parts), *(_probed(part) for part in parts))
    for part, trip in zip(parts, trips, strict=False):
        labels = part.kind, part.node
        found.add(names.CONNECTED, labels, float(part.bus.connected))
        if trip is not None:
            found.add(names.ROUND_TRIP, labels, trip)
        for metric, own, value in _samples(workload_of(part.bus)):
            found.add(metric, (*labels, *own), value)
        _timed(found, labels, workload_of(part.bus).figures)
    return found


async def _round_trip(part: Part) -> float | None:
    """None while there is no connection, and when the answer does not come in time."""
    if not (isinstance(part.bus, Wire) and part.bus.connected):
        return None
    with contextlib.suppress(DsecError, TimeoutError):
        began = time.perf_counter()
        async with asyncio.timeout(PROBE_WITHIN):
            await part.bus.round_trip()
        return time.perf_counter() - began
    return None


async def _probed(part: Part) -> None:
    await asyncio.gather(*(_within(probe) for probe in workload_of(part.bus).figures.probes))


async def _within(probe: Probe) -> None:
    with contextlib.suppress(DsecError, TimeoutError):  # what it would have told is missing then
        async with asyncio.timeout(PROBE_WITHIN):
            await probe()


def _samples(load: Workload) -> Iterator[Sample]:
    figures = load.figures
    yield names.BUSY, (), load.busy
    yield names.UNSERVED, (), 0
    for (noun, verb, project), tally in figures.requests.items():
        endpoint = _endpoint(noun, verb)
        for code, failure, count in _outcomes(tally):
            yield names.REQUESTS, (endpoint, project, code, failure), count
        if overloaded := tally.codes.get(Overloaded.code, 0):
            yield names.SHEDS, (endpoint, project, "load"), tally.shed
            yield names.SHEDS, (endpoint, project, "project"), overloaded - tally.shed
    for (backend, project), tally in figures.creates.items():
        for code, failure, count in _outcomes(tally):
            yield names.CREATES, (backend, project, code, failure), count
        yield names.VETOES, (backend,), tally.codes.get("no_capacity", 0)
    for (metric, labels), value in figures.counts.items():
        yield metric, labels, value
    for source in figures.sources:
        yield from source()


def _endpoint(noun: str, verb: str) -> str:
    return f"{noun}.{verb}" if verb else noun


def _outcomes(tally: Tally) -> Iterator[tuple[str, str, int]]:
    """Code, failure class and number; `ok` also when there was none yet, so that a rate has a beginning."""
    yield "ok", "", tally.count - sum(tally.codes.values())
    for code, count in tally.codes.items():
        kind = BY_CODE.get(code)
        yield code, (kind.failure if kind else Failure.INFRA).value, count


def _timed(found: Snapshot, labels: Labels, figures: Figures) -> None:
    for (noun, verb, _), tally in figures.requests.items():
        found.time(names.REQUEST_SECONDS, (*labels, _endpoint(noun, verb)), tally)
    for (backend, project), tally in figures.creates.items():
        found.time(names.CREATE_SECONDS, (*labels, backend, project), tally)
