"""Every subject, formatted and parsed here and nowhere else.

`<noun>.<verb>.<project>.<principal>[.<node>[.<sandbox>[.<exec>]]]` for what a principal asks: the broker's
permissions pin project and principal, so a receiver may believe them.
"""

from __future__ import annotations

import functools
from collections.abc import Container
from dataclasses import dataclass
from typing import Final, Literal

from dsec.bus.errors import BadId
from dsec.bus.ids import check, node_of

_DEPTH_KINDS: Final = ("project", "principal", "node", "sandbox", "exec")
_JOB_KINDS: Final = ("project", "principal", "job")

# what a tenant may ask -> how many ids follow <noun>.<verb>
TENANT_VERBS: Final[dict[tuple[str, str], int]] = {
    ("sandbox", "create"): 2,  # sandbox.create.<p>.<u>
    ("sandbox", "list"): 2,  # sandbox.list.<p>.<u>
    **{
        ("sandbox", verb): 4  # sandbox.stat.<p>.<u>.<n>.<s>
        for verb in ("stat", "start", "stop", "destroy", "pause", "resume", "pack", "renew")
    },
    **{("exec", verb): 4 for verb in ("start", "list")},  # exec.start.<p>.<u>.<n>.<s>
    **{
        ("exec", verb): 5  # exec.stdin.<p>.<u>.<n>.<s>.<e>
        for verb in ("stdin", "signal", "resize", "credit")
    },
    **{
        ("file", verb): 4 for verb in ("read", "write", "list", "stat", "remove", "watch")
    },  # file.read.<p>.<u>.<n>.<s>
    **{("port", verb): 4 for verb in ("open", "send", "recv", "close")},  # port.open.<p>.<u>.<n>.<s>
    ("fn", "call"): 2,  # fn.call.<p>.<u>
    ("fn", "gpu"): 2,  # fn.gpu.<p>.<u>
    ("log", "fetch"): 2,  # log.fetch.<p>.<u>
    **{
        ("iam", verb): 2  # iam.project.<p>.<u>
        for verb in ("project", "projects", "quota", "principal", "principals", "revoke", "rotate")
    },
    **{
        ("job", verb): 3  # job.pause.<p>.<u>.<job>
        for verb in ("pause", "resume", "kill", "stat", "cancel")
    },
}
JOB_VERBS: Final = tuple(asked for asked in TENANT_VERBS if asked[0] == "job")
CORE_VERBS: Final = (("sandbox", "create"), ("sandbox", "list"), *JOB_VERBS)
JOURNAL_VERBS: Final = (("log", "fetch"),)
IAM_VERBS: Final = tuple(asked for asked in TENANT_VERBS if asked[0] == "iam")


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed request subject; ids beyond the verb's depth are empty."""

    noun: str
    verb: str
    project: str
    principal: str
    node: str = ""
    sandbox: str = ""
    exec: str = ""
    job: str = ""


@functools.lru_cache(4096)
def request(
    noun: str,
    verb: str,
    project: str,
    principal: str,
    sandbox: str | None = None,
    exec_: str | None = None,
    *,
    job: str | None = None,
) -> str:
    """The subject of a tenant's request; the node comes out of the sandbox id. Raises BadId."""
    depth = TENANT_VERBS[noun, verb]
    tokens = [noun, verb, check("project", project), check("principal", principal)]
    if noun == "job":
        tokens.append(check("job", job or ""))
    if depth >= 4:
        tokens += [node_of(sandbox or ""), check("sandbox", sandbox or "")]
    if depth == 5:
        tokens.append(check("exec", exec_ or ""))
    return ".".join(tokens)


@functools.lru_cache(4096)
def parse(subject: str) -> Address:
    """The address in a tenant's request subject. Raises BadId for anything that is not in the table."""
    noun, _, rest = subject.partition(".")
    verb, _, rest = rest.partition(".")
    depth = TENANT_VERBS.get((noun, verb))
    ids = rest.split(".") if rest else []
    if depth is None or len(ids) != depth:
        raise BadId(f"{subject!r} is not a request subject", field="subject")
    kinds = _JOB_KINDS if noun == "job" else _DEPTH_KINDS
    checked = [check(kind, value) for kind, value in zip(kinds, ids, strict=False)]
    if noun == "job":
        return Address(noun, verb, checked[0], checked[1], job=checked[2])
    if depth >= 4 and node_of(checked[3]) != checked[2]:
        raise BadId(f"{subject!r}: the sandbox does not lie on that node", field="sandbox")
    return Address(noun, verb, *checked)


def tenant_publish(project: str, principal: str, nouns: Container[str] | None = None) -> list[str]:
    """Every subject pattern that a principal may publish to; with `nouns`: of these only."""
    who = f"{check('project', project)}.{check('principal', principal)}"
    return [
        f"{noun}.{verb}.{who}" + ".*" * (depth - 2)
        for (noun, verb), depth in TENANT_VERBS.items()
        if nouns is None or noun in nouns
    ]


def tenant_subscribe(project: str, principal: str) -> list[str]:
    """Every subject pattern that a principal may subscribe to."""
    return [
        f"exec.stream.{project}.>",
        f"event.*.{project}.>",
        job_progress(project, "*"),
        inbox(principal) + ".>",
    ]


def node_requests(node: str) -> list[str]:
    """What a node listens to from principals."""
    return [f"{noun}.*.*.*.{check('node', node)}.>" for noun in ("sandbox", "exec", "file", "port")]


def served(noun: str, verb: str) -> str:
    """What a control-plane service listens to: `sandbox.create.*.*`."""
    return f"{noun}.{verb}" + ".*" * TENANT_VERBS[noun, verb]


def inbox(owner: str) -> str:
    """The private inbox prefix of a principal, node or service; replies must start with it and a dot."""
    return f"_INBOX.{owner}"


def exec_stream(project: str, sandbox: str, exec_: str) -> str:
    """exec.stream.<p>.<n>.<s>.<e>: output frames of one exec."""
    return f"exec.stream.{project}.{node_of(sandbox)}.{sandbox}.{exec_}"


def event(what: str, project: str, sandbox: str) -> str:
    """event.<what>.<p>.<n>.<s>: a state change."""
    return f"event.{what}.{project}.{node_of(sandbox)}.{sandbox}"


def audit(writer: str, op: str, project: str) -> str:
    """audit.<writer>.<op>.<p>: a mutating call or a denial, append only."""
    return f"audit.{writer}.{op}.{project}"


def node_create(node: str) -> str:
    """node.create.<n>: core asks a node; the node answers the caller itself."""
    return f"node.create.{check('node', node)}"


def node_batch(node: str) -> str:
    """node.batch.<n>: core asks a node for its part of a batch, and how far that is; repeatable."""
    return f"node.batch.{check('node', node)}"


def node_op(node: str) -> str:
    """node.op.<n>: core does something to every sandbox of a job on a node."""
    return f"node.op.{check('node', node)}"


def job_order(project: str, operation: str) -> str:
    """job.order.<p>.<op>: a batch that some core is to carry out; stored in JOBS until it is done."""
    return f"job.order.{check('project', project)}.{check('operation', operation)}"


def job_progress(project: str, job: str) -> str:
    """job.progress.<p>.<job>: how far a batch of the job is; told by core, not stored."""
    return f"job.progress.{project}.{job}"


def job_key(project: str, job: str, operation: str) -> str:
    """`<project>.<job>.<operation>` in the jobs bucket: how far a batch is."""
    return f"{project}.{check('job', job)}.{operation}"


def node_drain(node: str) -> str:
    """node.drain.<n>: the operator asks a node to take nothing new, or to take work again."""
    return f"node.drain.{check('node', node)}"


def node_heartbeat(node: str) -> str:
    """node.heartbeat.<n>: 1 Hz, not stored."""
    return f"node.heartbeat.{check('node', node)}"


def plugin(verb: Literal["announce", "heartbeat", "drain"], kind: str, id_: str) -> str:
    """plugin.announce.<kind>.<id>: a process joins or leaves; plugin.heartbeat.<kind>.<id>: it lives, 1 Hz;
    plugin.drain.<kind>.<id>: the operator asks it to finish and leave."""
    return f"plugin.{verb}.{check('plugin', kind)}.{check('plugin', id_)}"


DRIVER_VERBS: Final = (
    *("info", "create", "channel", "destroy", "inspect", "recover"),
    *("pause", "resume", "reclaim", "oom_kills", "connect"),
)
"""What an edge asks of a driver in a process of its own (docs/adr/0005-drivers-in-their-own-process.md)."""
DRIVER_NEWS: Final = ("up", "death")
"""What such a driver tells its edge: that it lives, 1 Hz, and deaths of sandboxes; not stored."""


def driver(verb: str, node: str, name: str) -> str:
    """driver.<verb>.<node>.<name>: between a node's edge and one driver of it."""
    return f"driver.{verb}.{check('node', node)}.{check('driver', name)}"


def driver_named(subject: str) -> str:
    """The name in a driver's subject. Raises BadId."""
    return check("driver", subject.rpartition(".")[2])


def driver_news(verb: str, node: str) -> str:
    """driver.<verb>.<node>.*: news of every driver of a node."""
    return f"driver.{verb}.{check('node', node)}.*"


SCHED_PLACE: Final = "sched.place"
SCHED_SPREAD: Final = "sched.spread"
"""Nodes for many sandboxes at once, so many for each."""
SCHED_NODES: Final = "sched.nodes"
"""Every node that has been heard of lately, and which of them still live."""
SCHED_VETO: Final = "sched.veto"
"""A node that vetoes a create gives it back to any core here (docs/adr/0004-veto.md)."""
SCHED_FLEET: Final = "sched.fleet"
"""Every node as the watcher sees it: alive, suspect or failed (docs/adr/0007-fencing.md)."""
SCHED_FAIL: Final = "sched.fail"
"""The operator's word that a node is dead."""
QUOTA_BOUNDS: Final = "quota.bounds"
"""Core asks iam what bounds a project (docs/adr/0010-projects-and-quotas.md)."""
QUOTA_SUBTREE: Final = "quota.subtree"
"""Core asks iam which projects lie below one."""
ALL_HEARTBEATS: Final = "node.heartbeat.*"

STREAMS: Final = {
    "EXEC": ["exec.stream.>"],
    "EVENT": ["event.>"],
    "AUDIT": ["audit.>"],
    "JOBS": ["job.order.>"],
}
REGISTRY_BUCKET: Final = "registry"
OPS_BUCKET: Final = "ops"
QUOTA_BUCKET: Final = "quota"
NODES_BUCKET: Final = "nodes"
JOBS_BUCKET: Final = "jobs"
IAM_BUCKET: Final = "iam"
JOBS_CONSUMER: Final = "cores"
"""The durable consumer of JOBS that all cores share."""


def kv(bucket: str, key: str) -> str:
    """$KV.<bucket>.<key>: where a write to a key-value bucket is published."""
    return f"$KV.{bucket}.{key}"


def registry_key(project: str, sandbox: str) -> str:
    """`<project>.<node>.<sandbox>` in the registry bucket."""
    return f"{project}.{node_of(sandbox)}.{sandbox}"


def ops_key(project: str, operation: str) -> str:
    """`<project>.<operation>` in the ops bucket."""
    return f"{project}.{check('operation', operation)}"


def api(request: str) -> str:
    """$JS.API.<request>: where JetStream is asked, or the right to ask it there (NATS ADR-1)."""
    return f"$JS.API.{request}"
