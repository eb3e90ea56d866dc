"""Every metric, in one place. Besides their own, all have the labels `part` (core, scheduler…) and `node`.

Names follow Prometheus' "Metric and label naming": seconds and bytes, counters end in `_total`.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

COMMON: Final = ("part", "node")


class Metric(NamedTuple):
    """`labels`: its own, besides the common ones."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


# --- every part

CONNECTED: Final = Metric(
    "dsec_broker_connected", "gauge", "1 while the part's connection to the broker stands."
)
ROUND_TRIP: Final = Metric(
    "dsec_broker_round_trip_seconds", "gauge", "PING to PONG of the broker, measured by this scrape."
)
BUSY: Final = Metric("dsec_requests_in_hand", "gauge", "Requests that are being worked on or wait to be.")
REQUESTS: Final = Metric(
    "dsec_requests_total",
    "counter",
    "Requests dealt with, and how they ended: code ok, or the error's code and failure class.",
    ("endpoint", "project", "code", "failure"),
)
REQUEST_SECONDS: Final = Metric(
    "dsec_request_seconds",
    "histogram",
    "How long requests took, waiting for a place included.",
    ("endpoint",),
)
SHEDS: Final = Metric(
    "dsec_sheds_total",
    "counter",
    "Requests answered `overloaded`: by load, before any work, or by the project's own rate or share.",
    ("endpoint", "project", "by"),
)
UNSERVED: Final = Metric(
    "dsec_requests_unserved_total",
    "counter",
    "Messages with a forged reply subject or a bad subject: no answer.",
)
UNACKED: Final = Metric("dsec_unacked_bytes", "gauge", "Bytes handed to the log and not stored yet.")
WINDOW: Final = Metric(
    "dsec_unacked_window_bytes", "gauge", "Bytes that may be un-acked before output waits."
)
RECORDS: Final = Metric(
    "dsec_records_total", "counter", "Records handed to streams, by how that ended.", ("outcome",)
)

# --- core

BATCHES: Final = Metric("dsec_batches_total", "counter", "Batches that this core carried out to the end.")
BATCHES_RUNNING: Final = Metric("dsec_batches_running", "gauge", "Batches that this core carries out now.")
BATCH_SANDBOXES: Final = Metric(
    "dsec_batch_sandboxes_total", "counter", "Sandboxes of finished batches, by how they ended.", ("outcome",)
)
ADMISSION_DELAY: Final = Metric(
    "dsec_admission_delay_seconds", "gauge", "What a create takes in core now, by which it sheds."
)
STREAM_BYTES: Final = Metric("dsec_stream_bytes", "gauge", "Bytes that a stream holds.", ("stream",))
STREAM_MAX_BYTES: Final = Metric(
    "dsec_stream_max_bytes",
    "gauge",
    "Bytes that a stream may hold; then its oldest messages go.",
    ("stream",),
)
STREAM_MESSAGES: Final = Metric("dsec_stream_messages", "gauge", "Messages that a stream holds.", ("stream",))

# --- scheduler

PLACEMENTS: Final = Metric(
    "dsec_placements_total", "counter", "Sandboxes placed, by target node.", ("target",)
)
NODES: Final = Metric(
    "dsec_nodes",
    "gauge",
    "Nodes by standing: alive, suspect, failed; held: due, and too many at once.",
    ("standing",),
)
NODE_SILENT: Final = Metric(
    "dsec_node_silent_seconds", "gauge", "Silence of a node that counts towards its fence.", ("target",)
)
NODE_CLOCK: Final = Metric(
    "dsec_node_clock_offset_seconds", "gauge", "How far a node's clock is ahead of this one's.", ("target",)
)
FENCES: Final = Metric("dsec_fences_total", "counter", "Nodes declared failed by this watcher.", ("target",))

# --- nodes, real and simulated

CREATES: Final = Metric(
    "dsec_creates_total",
    "counter",
    "Creates on the node, by how they ended: code ok, or the error's; no_capacity is a veto.",
    ("backend", "project", "code", "failure"),
)
CREATE_SECONDS: Final = Metric(
    "dsec_create_seconds", "histogram", "From core's order to the answer.", ("backend", "project")
)
VETOES: Final = Metric("dsec_vetoes_total", "counter", "Creates given back to core.", ("backend",))
SANDBOXES: Final = Metric(
    "dsec_sandboxes", "gauge", "Sandboxes on the node.", ("backend", "project", "state")
)
SANDBOX_FAILURES: Final = Metric(
    "dsec_sandbox_failures_total",
    "counter",
    "Sandboxes that failed after they ran, by failure class.",
    ("backend", "project", "failure"),
)
CPU: Final = Metric("dsec_node_cpu_cores", "gauge", "Cores of the node.")
CPU_PROMISED: Final = Metric("dsec_node_cpu_promised_cores", "gauge", "Cores promised to sandboxes.")
MEMORY: Final = Metric("dsec_node_memory_bytes", "gauge", "Memory of the node.")
MEMORY_PROMISED: Final = Metric("dsec_node_memory_promised_bytes", "gauge", "Memory promised to sandboxes.")
DISK_FREE: Final = Metric("dsec_node_disk_free_bytes", "gauge", "Free where the node's home lies.")
SPOOL_FREE: Final = Metric(
    "dsec_node_spool_free_bytes", "gauge", "Free on the tmpfs where output waits for the log."
)
OPEN: Final = Metric("dsec_node_open", "gauge", "1 while the node serves, 0 while it is frozen.")
DRAINING: Final = Metric("dsec_node_draining", "gauge", "1 while the node takes nothing new.")
LIFE: Final = Metric(
    "dsec_node_life", "gauge", "The number of the node's present life; grows at each start and fence."
)
FREEZES: Final = Metric("dsec_node_freezes_total", "counter", "Times that the node has frozen its sandboxes.")
JOURNAL_COMMITS: Final = Metric(
    "dsec_journal_commits_total", "counter", "Transactions of the node's journal."
)
JOURNAL_ENTRIES: Final = Metric(
    "dsec_journal_entries_total", "counter", "Entries committed; many go together."
)
JOURNAL_SECONDS: Final = Metric(
    "dsec_journal_commit_seconds_total", "counter", "Spent on those transactions."
)
EXECS_RUNNING: Final = Metric("dsec_execs_running", "gauge", "Commands that run on the node.")
EXECS_ENDED: Final = Metric(
    "dsec_execs_ended_total",
    "counter",
    "Commands that ended: exit, signal, timeout, oom, log_quota.",
    ("ended",),
)
EXEC_BYTES: Final = Metric("dsec_exec_output_bytes_total", "counter", "Bytes of output captured.")

# --- the process, without the common labels

LOOP_DELAY: Final = Metric(
    "dsec_event_loop_delay_seconds", "gauge", "How long the event loop let this scrape wait."
)
BUILD: Final = Metric("dsec_build_info", "gauge", "1; the version that runs.", ("version",))
OF_PROCESS: Final = (LOOP_DELAY, BUILD)

ALL: Final = {metric.name: metric for metric in list(globals().values()) if isinstance(metric, Metric)}
