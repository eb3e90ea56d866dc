"""What the node tells of itself when somebody looks: sandboxes, what is promised, its disk and journal."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator

from dsec.bus.errors import Failure
from dsec.bus.messages import Record
from dsec.bus.metrics import names
from dsec.bus.metrics.figures import Figures, Sample
from dsec.bus.workload import workload_of
from dsec.plugins.edge.admission import load
from dsec.plugins.edge.node import Node


def figures_of(node: Node) -> Figures:
    """Where the node's work is counted."""
    return workload_of(node.bus).figures


def frozen(node: Node) -> str:
    """Why the node does not serve; empty when it does."""
    return "" if node.open.is_set() else "its sandboxes are frozen: it has not heard of the broker for long"


def failed(node: Node, record: Record, failure: Failure) -> None:
    """A sandbox that ran has failed."""
    figures = figures_of(node)
    figures.count(names.SANDBOX_FAILURES, record.spec.backend, figures.project(record.project), failure.value)


def samples(node: Node) -> Iterator[Sample]:
    """See Figures.telling."""
    yield from _sandboxes(node)
    yield from _promised(node)
    journal = node.journal.counts
    yield names.DISK_FREE, (), node.disk_free()
    yield names.SPOOL_FREE, (), shutil.disk_usage(node.spools).free
    yield names.OPEN, (), float(node.open.is_set())
    yield names.DRAINING, (), float(node.draining)
    yield names.LIFE, (), node.journal.epoch
    yield names.JOURNAL_COMMITS, (), journal.commits
    yield names.JOURNAL_ENTRIES, (), journal.entries
    yield names.JOURNAL_SECONDS, (), journal.seconds


def _sandboxes(node: Node) -> Iterator[Sample]:
    project = figures_of(node).project
    records = [sandbox.record for sandbox in node.sandboxes]
    states = Counter((one.spec.backend, project(one.project), one.state.value) for one in records)
    yield from ((names.SANDBOXES, labels, count) for labels, count in states.items())
    yield names.EXECS_RUNNING, (), sum(len(sandbox.running) for sandbox in node.sandboxes)


def _promised(node: Node) -> Iterator[Sample]:
    now = load(node.sandboxes.promised())
    yield names.CPU, (), node.capacity.cpu
    yield names.CPU_PROMISED, (), now.cpu
    yield names.MEMORY, (), node.capacity.memory
    yield names.MEMORY_PROMISED, (), now.memory
