"""A snapshot in Prometheus' text format, by prometheus-client, with the figures of the process itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from dsec.bus.metrics.collect import Snapshot
from dsec.bus.metrics.figures import BOUNDS
from dsec.bus.metrics.names import COMMON, OF_PROCESS, Metric

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_UPPER: Final = (*(str(bound) for bound in BOUNDS), "+Inf")
_KINDS: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class _Once(Collector):
    """One snapshot as a collector."""

    def __init__(self, found: Snapshot) -> None:
        self._found = found

    def collect(self) -> Iterable[Family]:
        return families(self._found)


def render(found: Snapshot) -> bytes:
    """The page."""
    registry = CollectorRegistry(auto_describe=False)
    for kind in (ProcessCollector, PlatformCollector, GCCollector):
        kind(registry=registry)
    registry.register(_Once(found))
    return generate_latest(registry)


def families(found: Snapshot) -> Iterator[Family]:
    """The snapshot as metric families."""
    for metric, values in found.values.items():
        family = _KINDS[metric.kind](metric.name, metric.help, labels=_labels(metric))
        for labels, value in values.items():
            family.add_metric(labels, value)
        yield family
    for metric, histograms in found.histograms.items():
        family = HistogramMetricFamily(metric.name, metric.help, labels=_labels(metric))
        for labels, one in histograms.items():
            family.add_metric(labels, list(zip(_UPPER, accumulate(one.buckets), strict=True)), one.seconds)
        yield family


def _labels(metric: Metric) -> tuple[str, ...]:
    return metric.labels if metric in OF_PROCESS else (*COMMON, *metric.labels)
