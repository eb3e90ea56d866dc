"""Rights as sets of subjects: what a role must never reach, for every name it could have."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus import ids, subjects
from dsec.bus.local import matches
from dsec.bus.nats.credentials import Role
from dsec.plugins.iam.entries import Identity
from dsec.plugins.iam.rights import Rights, rights_of

NAME = st.from_regex(re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,10}[a-z0-9])?"), fullmatch=True)
PROJECT = NAME.map(lambda name: "p-" + name)
PRINCIPAL = NAME.map(lambda name: "u-" + name)
NODE = NAME.map(lambda name: "n-" + name)
ROLES = [Role.CORE, Role.SCHEDULER, Role.JOURNAL, Role.OPERATOR]


def overlap(one: str, other: str) -> bool:
    """Whether some subject matches both patterns."""
    a, b = one.split("."), other.split(".")
    for x, y in zip(a, b, strict=False):
        if ">" in {x, y}:
            return True
        if x != y and "*" not in {x, y}:
            return False
    return len(a) == len(b)


def tenant(project: str, principal: str) -> Rights:
    return rights_of(Identity(Role.TENANT, project=project, principal=principal))


def edge(node: str) -> Rights:
    return rights_of(Identity(Role.EDGE, node=node))


@given(PROJECT, PRINCIPAL)
def test_a_tenant_never_publishes_into_jetstream_streams_nodes_or_inboxes(
    project: str, principal: str
) -> None:
    forbidden = ["$JS.>", "$KV.>", "$SRV.>", "$SYS.>", "_INBOX.>", "exec.stream.>", "event.>", "audit.>"]
    forbidden += ["node.>", "sched.>", "plugin.>", "guard.>", "job.order.>", "job.progress.>"]
    for right in tenant(project, principal).publish:
        assert not any(overlap(right, pattern) for pattern in forbidden), right


@given(PROJECT, PRINCIPAL, PROJECT, PRINCIPAL)
def test_a_tenant_reaches_only_its_own_project_and_name(
    project: str, principal: str, other: str, stranger: str
) -> None:
    for right in tenant(project, principal).publish:
        assert matches(f"*.*.{project}.{principal}.>", right + ".>")
        if (other, stranger) != (project, principal):
            assert not overlap(right, f"*.*.{other}.{stranger}")
            assert not overlap(right, f"*.*.{other}.{stranger}.>")
    for right in tenant(project, principal).subscribe:
        if other != project:
            assert not overlap(right, f"exec.stream.{other}.>")
            assert not overlap(right, f"event.*.{other}.>")
            assert not overlap(right, f"job.progress.{other}.>")
        if stranger != principal:
            assert not overlap(right, subjects.inbox(stranger) + ".>")


@given(PROJECT, PRINCIPAL)
def test_a_tenant_may_ask_everything_in_the_table(project: str, principal: str) -> None:
    sandbox, exec_ = ids.sandbox_on("n-a"), ids.exec_of("op")
    rights = tenant(project, principal).publish
    for noun, verb in subjects.TENANT_VERBS:
        asked = subjects.request(noun, verb, project, principal, sandbox, exec_, job="j-a")
        assert any(matches(right, asked) for right in rights), asked


@given(NODE, NODE)
def test_a_node_speaks_and_listens_only_in_its_own_name(node: str, other: str) -> None:
    rights = edge(node)
    sandbox = ids.sandbox_on(other)
    foreign = [
        subjects.exec_stream("p-a", sandbox, "e-abcd"),
        subjects.event("running", "p-a", sandbox),
        subjects.node_heartbeat(other),
        f"$KV.registry.{subjects.registry_key('p-a', sandbox)}",
        f"$JS.API.DIRECT.GET.EXEC.{subjects.exec_stream('p-a', sandbox, 'e-abcd')}",
        "$JS.API.DIRECT.GET.EXEC",
        "$JS.API.STREAM.DELETE.EXEC",
        "$JS.API.STREAM.PURGE.EXEC",
        f"node.create.{other}",
        "audit.core.x.p-a",
        "_INBOX.u-ann.x.1",
    ]
    if node != other:
        for subject in foreign:
            assert not any(matches(right, subject) for right in rights.publish), subject
        assert not any(overlap(right, subjects.node_create(other)) for right in rights.subscribe)
        assert not any(
            overlap(right, foreign) for right in rights.subscribe for foreign in subjects.node_requests(other)
        )


@given(NODE)
def test_a_node_has_what_the_edge_does(node: str) -> None:
    rights = edge(node)
    sandbox = ids.sandbox_on(node)
    stream = subjects.exec_stream("p-a", sandbox, "e-abcd")
    for subject in (
        stream,
        subjects.event("running", "p-a", sandbox),
        subjects.audit("edge", "create", "p-a"),
        subjects.node_heartbeat(node),
        f"$KV.registry.{subjects.registry_key('p-a', sandbox)}",
        f"$JS.API.DIRECT.GET.EXEC.{stream}",
        f"$JS.API.DIRECT.GET.KV_registry.$KV.registry.{subjects.registry_key('p-a', sandbox)}",
        subjects.SCHED_VETO,
    ):
        assert any(matches(right, subject) for right in rights.publish), subject
    for subject in (
        subjects.node_create(node),
        subjects.request("exec", "start", "p-a", "u-a", sandbox),
        subjects.request("exec", "credit", "p-a", "u-a", sandbox, "e-abcd"),
        subjects.inbox(node) + ".ack-x.1",
    ):
        assert any(matches(right, subject) for right in rights.subscribe), subject


def _all_roles() -> list[Rights]:
    return [tenant("p-a", "u-a"), edge("n-a"), *(rights_of(Identity(role)) for role in ROLES)]


@pytest.mark.parametrize("rights", _all_roles())
def test_no_list_is_empty_since_an_empty_one_allows_everything(rights: Rights) -> None:
    assert rights.publish
    assert rights.subscribe


@pytest.mark.parametrize("rights", _all_roles())
def test_nobody_but_core_publishes_into_an_inbox_by_right_or_deletes_what_is_stored(rights: Rights) -> None:
    inboxes = [right for right in rights.publish if overlap(right, "_INBOX.>")]
    assert inboxes == (["_INBOX.*.>"] if rights == rights_of(Identity(Role.CORE)) else [])
    for right in rights.publish:
        for verb in ("STREAM.DELETE.AUDIT", "STREAM.PURGE.AUDIT", "STREAM.MSG.DELETE.EXEC"):
            assert not matches(right, f"$JS.API.{verb}")
        assert not overlap(right, "$SYS.>")


@pytest.mark.parametrize("rights", _all_roles())
def test_everybody_listens_in_one_inbox(rights: Rights) -> None:
    inboxes = [right for right in rights.subscribe if overlap(right, "_INBOX.>")]
    assert len(inboxes) == 1
    assert re.fullmatch(r"_INBOX\.[a-z0-9_-]+\.>", inboxes[0])


def test_iam_has_no_rights_to_issue_to_itself() -> None:
    with pytest.raises(ValueError, match="static"):
        rights_of(Identity(Role.IAM))
