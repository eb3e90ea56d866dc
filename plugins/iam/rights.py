"""Exactly what each identity may publish and subscribe to: explicit lists, nothing implied.

A list names only what its role needs ("Subjects and rights" of the architecture). Three rules hold for all,
and the property tests check them: nobody publishes into an inbox except as the answer to a request that it
received; a tenant reaches only its own project, and neither JetStream nor a stream's subjects; a node reaches
only its own name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dsec.bus import ids, subjects
from dsec.bus.nats.credentials import Role
from dsec.plugins.iam.entries import Identity

BUCKETS: Final = tuple(
    f"KV_{name}" for name in (subjects.REGISTRY_BUCKET, subjects.OPS_BUCKET, subjects.JOBS_BUCKET)
)
NODES: Final = f"KV_{subjects.NODES_BUCKET}"
QUOTA: Final = f"KV_{subjects.QUOTA_BUCKET}"
STREAMS: Final = (*subjects.STREAMS, *BUCKETS, NODES, QUOTA)
INBOXES: Final = subjects.inbox("*") + ".>"


@dataclass(frozen=True, slots=True)
class Rights:
    """`answer_within`: seconds in which it may answer, once, a request that it received; 0: it answers none.

    The broker remembers every request for as long, so it is the longest deadline and no more.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answer_within: float = 0.0
    subscriptions: int = 1000


def rights_of(identity: Identity) -> Rights:
    """The rights of one identity; iam's own stand in the broker's configuration (`bus.nats.broker`)."""
    match identity.role:
        case Role.TENANT:
            return _tenant(identity)
        case Role.EDGE:
            return _edge(identity.node)
        case Role.DRIVER:
            return _driver(identity.node, identity.principal)
        case Role.IAM:
            raise ValueError("iam's rights are static")
        case kind:
            return _CONTROL[kind]()


def _tenant(who: Identity) -> Rights:
    """Nobody is made without any right: an empty list would allow everything."""
    return Rights(
        publish=tuple(subjects.tenant_publish(who.project, who.principal, who.rights)),
        subscribe=tuple(subjects.tenant_subscribe(who.project, who.principal)),
        subscriptions=20_000,  # one per exec that streams, for one process with thousands of sandboxes
    )


def _edge(node: str) -> Rights:
    registry = subjects.kv(subjects.REGISTRY_BUCKET, f"*.{node}.*")
    own = (f"exec.stream.*.{node}.>", f"event.*.*.{node}.>")
    return Rights(
        publish=(
            *own,
            registry,
            "audit.edge.>",
            subjects.node_heartbeat(node),
            subjects.SCHED_VETO,
            *(f"driver.{verb}.{node}.*" for verb in subjects.DRIVER_VERBS),
            *_plugin("edge", node),
            # stateless calls are done by the same node, over a connection of their own
            "audit.fncall.>",
            *_plugin("fncall", node),
            # only with the subject in the subject: a filter in the body would read other nodes' records
            subjects.api(f"DIRECT.GET.EXEC.{own[0]}"),
            subjects.api(f"DIRECT.GET.EVENT.{own[1]}"),
            subjects.api(f"DIRECT.GET.KV_{subjects.REGISTRY_BUCKET}.{registry}"),
            # its own life; the entries of others, which the filter in the body may name, hold no secret
            subjects.kv(subjects.NODES_BUCKET, f"{node}"),
            subjects.api(f"STREAM.MSG.GET.{NODES}"),
            *_infos(*STREAMS),
        ),
        subscribe=(
            f"node.*.{node}",
            *subjects.node_requests(node),
            *(subjects.driver_news(verb, node) for verb in subjects.DRIVER_NEWS),
            *_service("edge", node),
            subjects.served("fn", "call"),
            subjects.served("fn", "gpu"),
            f"plugin.drain.fncall.{node}",
        ),
        answer_within=150.0,  # a create from a cold image may take the client's whole 120 s
    )


def _driver(node: str, owner: str) -> Rights:
    """One driver of one node, in a process of its own: it answers its edge, and nobody else hears it."""
    name = owner.removeprefix(ids.driver_on(node, "x")[:-1])
    return Rights(
        publish=(
            *(subjects.driver(verb, node, name) for verb in subjects.DRIVER_NEWS),
            *_plugin("driver", owner),
        ),
        subscribe=(
            *(subjects.driver(verb, node, name) for verb in subjects.DRIVER_VERBS),
            *_service("driver", owner),
        ),
        answer_within=150.0,
    )


def _core() -> Rights:
    """It may answer into every inbox: the broker would have to remember 5,000 requests a second for as long
    as the longest deadline (ADR 0031). That a reply subject is the caller's own, core checks itself."""
    registry, ops, jobs = BUCKETS
    return Rights(
        publish=(
            "node.create.*",
            "node.batch.*",
            "node.op.*",
            "node.drain.*",
            subjects.SCHED_PLACE,
            subjects.QUOTA_BOUNDS,
            subjects.QUOTA_SUBTREE,
            subjects.SCHED_FLEET,
            subjects.SCHED_SPREAD,
            subjects.SCHED_NODES,
            subjects.kv(subjects.OPS_BUCKET, ">"),
            subjects.kv(subjects.QUOTA_BUCKET, "*"),
            subjects.kv(subjects.JOBS_BUCKET, ">"),
            *subjects.STREAMS["JOBS"],
            subjects.job_progress("*", "*"),
            subjects.api(f"CONSUMER.DURABLE.CREATE.JOBS.{subjects.JOBS_CONSUMER}"),
            subjects.api(f"CONSUMER.MSG.NEXT.JOBS.{subjects.JOBS_CONSUMER}"),
            f"$JS.ACK.JOBS.{subjects.JOBS_CONSUMER}.>",
            "audit.core.>",
            INBOXES,
            *_plugin("core"),
            *(subjects.api(f"STREAM.{verb}.{stream}") for verb in ("CREATE", "UPDATE") for stream in STREAMS),
            *_infos(*STREAMS),
            *_reads(registry, ops, jobs, QUOTA),
        ),
        subscribe=(
            *_served(subjects.CORE_VERBS),
            subjects.SCHED_VETO,
            subjects.audit("*", "create", "*"),
            *_service("core"),
        ),
    )


def _scheduler() -> Rights:
    """It places, and as the watcher it declares nodes dead and writes what follows from that."""
    return Rights(
        publish=(
            "audit.scheduler.>",
            "event.failed.>",
            subjects.kv(subjects.NODES_BUCKET, "*"),
            subjects.kv(subjects.REGISTRY_BUCKET, "*.*.*"),
            *_plugin("scheduler"),
            *_reads(BUCKETS[0], NODES),
        ),
        subscribe=(
            subjects.SCHED_PLACE,
            subjects.SCHED_FLEET,
            subjects.SCHED_FAIL,
            subjects.SCHED_SPREAD,
            subjects.SCHED_NODES,
            subjects.ALL_HEARTBEATS,
            *_service("scheduler"),
        ),
        answer_within=5.0,
    )


def _journal() -> Rights:
    return Rights(
        publish=(
            "audit.journal.>",
            *_plugin("journal"),
            *_infos(*subjects.STREAMS),
            *_reads(*subjects.STREAMS),
        ),
        subscribe=(*_served(subjects.JOURNAL_VERBS), *_service("journal")),
        answer_within=30.0,
    )


def _operator() -> Rights:
    """Reads and backs up everything that is stored, asks every service how it is, asks plugins and nodes to
    drain, gives its word on dead nodes; no more."""
    return Rights(
        publish=(
            "$SRV.>",
            "node.drain.*",
            subjects.SCHED_FLEET,
            subjects.SCHED_FAIL,
            "plugin.drain.*.*",
            subjects.api("STREAM.LIST"),
            subjects.api("STREAM.NAMES"),
            subjects.api("CONSUMER.LIST.*"),
            subjects.api("STREAM.SNAPSHOT.*"),
            "$JS.SNAPSHOT.ACK.>",
            *_infos(*STREAMS),
            *_reads(*STREAMS),
        ),
        subscribe=(
            "event.>",
            "audit.>",
            subjects.ALL_HEARTBEATS,
            "plugin.>",
            subjects.inbox("operator") + ".>",
        ),
    )


_CONTROL: Final[dict[Role, Callable[[], Rights]]] = {
    Role.CORE: _core,
    Role.SCHEDULER: _scheduler,
    Role.JOURNAL: _journal,
    Role.OPERATOR: _operator,
}


def _plugin(kind: str, owner: str = "*") -> tuple[str, ...]:
    """What a part tells of itself. Several of one kind share its credential, each has an id of its own."""
    return tuple(f"plugin.{verb}.{kind}.{owner}" for verb in ("announce", "heartbeat"))


def _service(kind: str, owner: str = "") -> tuple[str, ...]:
    """What a part listens to besides its work: discovery, the operator's word to drain, and its inbox."""
    return "$SRV.>", f"plugin.drain.{kind}.{owner or '*'}", subjects.inbox(owner or kind) + ".>"


def _served(verbs: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(subjects.served(noun, verb) for noun, verb in verbs)


def _infos(*streams: str) -> tuple[str, ...]:
    return subjects.api("INFO"), *(subjects.api(f"STREAM.INFO.{stream}") for stream in streams)


def _reads(*streams: str) -> tuple[str, ...]:
    """Direct Get with the subject in the request's subject, and with a filter in its body, as the leader's
    own read has it."""
    ways = ("DIRECT.GET.{}", "DIRECT.GET.{}.>", "STREAM.MSG.GET.{}")
    return tuple(subjects.api(f"{way.format(stream)}") for stream in streams for way in ways)
