"""What a driver's credentials are good for, and that nobody speaks in another part's name."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus import ids, subjects
from dsec.bus.errors import Conflict, DeadlineExceeded, PolicyError
from dsec.bus.local import matches
from dsec.bus.nats.credentials import Role
from dsec.bus.transport import Received
from dsec.plugins.iam import Iam
from dsec.plugins.iam.entries import Identity
from dsec.plugins.iam.rights import Rights, rights_of
from tests.wire.support import Stack

NODE = st.from_regex(re.compile(r"n-[a-z0-9](?:[a-z0-9_-]{0,8}[a-z0-9])?"), fullmatch=True)
DRIVER = st.from_regex(re.compile(r"[a-z][a-z0-9_-]{0,8}"), fullmatch=True)


def driver(node: str, name: str) -> Rights:
    return rights_of(Identity(Role.DRIVER, node=node, principal=ids.driver_on(node, name)))


def may(rights: tuple[str, ...], subject: str) -> bool:
    return any(matches(right, subject) for right in rights)


@given(NODE, DRIVER, NODE, DRIVER)
def test_a_driver_hears_and_tells_only_what_is_its_own(
    node: str, name: str, other: str, stranger: str
) -> None:
    rights = driver(node, name)
    for verb in subjects.DRIVER_VERBS:
        assert may(rights.subscribe, subjects.driver(verb, node, name))
    for verb in subjects.DRIVER_NEWS:
        assert may(rights.publish, subjects.driver(verb, node, name))
        if (node, name) != (other, stranger):
            assert not may(rights.publish, subjects.driver(verb, other, stranger))
            assert not may(rights.subscribe, subjects.driver("create", other, stranger))
    assert not may(rights.publish, subjects.driver("create", node, name))
    for subject in (
        "sandbox.create.p-a.u-a",
        "sched.place",
        subjects.node_heartbeat(node),
        subjects.node_create(node),
        f"$KV.registry.p-a.{node}.s",
        "$JS.API.INFO",
        "$SRV.PING",
        "audit.edge.create.p-a",
        f"event.created.p-a.{node}.s",
        subjects.plugin("heartbeat", "edge", node),
        subjects.plugin("announce", "core", "x"),
        subjects.plugin("drain", "driver", ids.driver_on(node, name)),
        "_INBOX.u-a.x",
    ):
        assert not may(rights.publish, subject), subject


@given(NODE, NODE)
def test_an_edge_asks_only_its_own_drivers(node: str, other: str) -> None:
    rights = rights_of(Identity(Role.EDGE, node=node))
    for verb in subjects.DRIVER_VERBS:
        assert may(rights.publish, subjects.driver(verb, node, "container"))
        if node != other:
            assert not may(rights.publish, subjects.driver(verb, other, "container"))
    for verb in subjects.DRIVER_NEWS:
        assert may(rights.subscribe, subjects.driver(verb, node, "container"))
        assert not may(rights.publish, subjects.driver(verb, node, "container"))


@pytest.mark.parametrize("role", [Role.CORE, Role.SCHEDULER, Role.JOURNAL, Role.OPERATOR])
def test_the_control_plane_is_not_on_the_way_between_an_edge_and_its_drivers(role: Role) -> None:
    rights = rights_of(Identity(role))
    for verb in (*subjects.DRIVER_VERBS, *subjects.DRIVER_NEWS):
        assert not may(rights.publish, subjects.driver(verb, "n-a", "container"))
        assert not may(rights.subscribe, subjects.driver(verb, "n-a", "container"))


@pytest.mark.parametrize("role", [Role.CORE, Role.SCHEDULER, Role.JOURNAL])
def test_a_part_announces_itself_under_its_own_kind_only(role: Role) -> None:
    rights = rights_of(Identity(role))
    for verb in ("announce", "heartbeat"):
        for kind in ("core", "scheduler", "journal", "edge", "driver", "iam"):
            assert may(rights.publish, f"plugin.{verb}.{kind}.x") == (kind == role.value)
    assert not may(rights.publish, f"plugin.drain.{role.value}.x")


async def test_the_broker_refuses_impersonation_and_forged_heartbeats(stack: Stack) -> None:
    for name in ("container", "other"):
        Iam.create_plugin(stack.home, "n-a", name)
    async with stack.wire("d-a-container") as ours, stack.wire("d-a-other") as other:
        heard: list[str] = []
        async with stack.wire("n-a") as edge, stack.wire("operator") as operator:
            await edge.subscribe("driver.up.n-a.*", lambda message: heard.append(message.subject))
            await operator.subscribe("plugin.>", lambda message: heard.append(message.subject))
            with pytest.raises(PolicyError):
                await other.subscribe("driver.create.n-a.container", lambda _: None)
            with pytest.raises(PolicyError):
                await ours.subscribe("driver.create.n-a.*", lambda _: None)
            for subject in (
                "driver.up.n-a.container",
                "driver.death.n-a.container",
                "plugin.heartbeat.driver.d-a-container",
                "plugin.announce.edge.n-a",
                "plugin.heartbeat.scheduler.x",
                "node.heartbeat.n-a",
            ):
                with pytest.raises(PolicyError):
                    await other.request(subject, b"{}", timeout=2)
            for subject in ("driver.up.n-a.other", "plugin.heartbeat.driver.d-a-other"):
                with pytest.raises(DeadlineExceeded):  # let through: heard, and answered by nobody
                    await other.request(subject, b"{}", timeout=0.3)
            assert sorted(heard) == ["driver.up.n-a.other", "plugin.heartbeat.driver.d-a-other"]


async def test_a_driver_answers_only_what_it_was_asked(stack: Stack) -> None:
    Iam.create_plugin(stack.home, "n-a", "answers")
    async with (
        stack.wire("d-a-answers") as plugin,
        stack.wire("n-a") as edge,
        stack.wire("u-admin") as tenant,
    ):
        asked: list[Received] = []
        await plugin.subscribe("driver.info.n-a.answers", asked.append)
        with pytest.raises(DeadlineExceeded):
            await edge.request("driver.info.n-a.answers", b"{}", timeout=0.3)
        with pytest.raises(PolicyError):
            await tenant.request("driver.info.n-a.answers", b"{}", timeout=2)
        assert len(asked) == 1
        with pytest.raises(PolicyError):
            await plugin.request("_INBOX.u-admin.forged", b"{}", timeout=2)


def test_a_name_that_reads_as_two_drivers_is_given_once(stack: Stack) -> None:
    Iam.create_plugin(stack.home, "n-x", "y-z")
    with pytest.raises(Conflict):
        Iam.create_plugin(stack.home, "n-x-y", "z")
