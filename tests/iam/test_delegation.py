"""Projects and principals in the hands of principals: nobody reaches above, beside, or hands on too much."""

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dsec.bus.errors import Conflict, DsecError, GoneError, PolicyError, QuotaExceeded, SpecError
from dsec.bus.messages import Request
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.projects import (
    QUANTITIES,
    RIGHTS,
    CreatePrincipal,
    CreateProject,
    ListPrincipals,
    ListProjects,
    Project,
    Quota,
    RevokePrincipal,
    RotatePrincipal,
    SetQuota,
)
from dsec.plugins.iam.directory import Directory, Who
from dsec.plugins.iam.entries import Member
from dsec.plugins.iam.tables import Tables

ResultT = TypeVar("ResultT")
OPERATIONS = itertools.count()
ADMIN, LEAD, AGENT, RIVAL = (
    Who("p-default", "u-admin"),
    Who("p-lab", "u-lead"),
    Who("p-run", "u-agent"),
    Who("p-rival", "u-rival"),
)


def asked(model: type[Any], **fields: Any) -> Any:
    return model(**({"op": f"op-{next(OPERATIONS)}", "deadline": 0} | fields))


def public() -> str:
    return Credentials.new(Role.TENANT).public


class World:
    """admin > p-lab (u-lead) > p-run (u-agent), and p-rival (u-rival) beside p-lab; all may delegate."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.directory = Directory(self.tables)
        self.operators("p-default", "u-admin")
        self.project(ADMIN, "p-lab", sandboxes=10, cpu=4.0)
        self.principal(ADMIN, "u-lead", "p-lab", rights=RIGHTS)
        self.project(ADMIN, "p-rival")
        self.principal(ADMIN, "u-rival", "p-rival", rights=RIGHTS)
        self.project(LEAD, "p-run", sandboxes=5)
        self.principal(LEAD, "u-agent", "p-run", rights=("iam", "sandbox"))

    def operators(self, project: str, name: str) -> None:
        """A principal as the operator makes it."""
        member = Member.of(Credentials.new(Role.TENANT, project=project, principal=name), created=0.0)
        self.change(lambda: self.tables.add_member(member))

    def change(self, work: Callable[[], ResultT]) -> ResultT:
        """What the bucket does with a transaction, without one."""
        result, entries = self.tables.attempt(lambda _: work())
        self.tables.apply(entries.items())
        return result

    def project(self, who: Who, name: str, parent: Any = None, **quota: Any) -> dict[str, Any]:
        request = asked(CreateProject, project=name, parent=parent, quota=quota)
        return dict(orjson.loads(self.change(lambda: self.directory.create_project(who, request)))["ok"])

    def principal(
        self, who: Who, name: str, project: str | None = None, rights: tuple[str, ...] | None = None
    ) -> dict[str, Any]:
        request = asked(CreatePrincipal, principal=name, public=public(), project=project, rights=rights)
        return dict(orjson.loads(self.change(lambda: self.directory.create_principal(who, request)))["ok"])

    def quota(self, who: Who, project: str, **quota: Any) -> None:
        self.change(lambda: self.directory.set_quota(who, asked(SetQuota, project=project, quota=quota)))

    def revoke(self, who: Who, name: str, *, keep_made: bool = False) -> list[str]:
        request = asked(RevokePrincipal, principal=name, keep_made=keep_made)
        return list(
            orjson.loads(self.change(lambda: self.directory.revoke(who, request)))["ok"]["principals"]
        )

    def names(self, who: Who) -> set[str]:
        return {one.project for one in self.directory.projects(who, asked(ListProjects)).projects}

    def people(self, who: Who) -> set[str]:
        return {one.principal for one in self.directory.principals(who, asked(ListPrincipals)).principals}


@pytest.fixture
def world() -> World:
    return World()


def test_projects_nest_and_their_makers_see_what_lies_below(world: World) -> None:
    assert world.names(ADMIN) == {"p-default", "p-lab", "p-rival", "p-run"}
    assert world.names(LEAD) == {"p-lab", "p-run"}
    assert world.names(AGENT) == {"p-run"}
    assert world.people(LEAD) == {"u-lead", "u-agent"}


def test_an_agent_makes_projects_and_agents_below_its_own(world: World) -> None:
    made = world.project(AGENT, "p-try", sandboxes=2)
    assert made["parent"] == "p-run"
    assert world.principal(AGENT, "u-worker", "p-try")["rights"] == ["sandbox"]
    assert world.names(LEAD) == {"p-lab", "p-run", "p-try"}


@pytest.mark.parametrize(("quantity", "value"), [("sandboxes", 11), ("cpu", 4.5)])
def test_a_quota_is_at_most_what_any_project_above_has(world: World, quantity: str, value: float) -> None:
    with pytest.raises(QuotaExceeded, match="p-lab") as caught:
        world.project(LEAD, "p-big", **{quantity: value})
    assert caught.value.field == f"quota.{quantity}"
    world.project(AGENT, "p-try")
    with pytest.raises(QuotaExceeded):
        world.quota(AGENT, "p-try", **{quantity: value})
    assert world.names(LEAD) == {"p-lab", "p-run", "p-try"}


ABOVE_AND_BESIDE: list[Callable[[World], object]] = [
    lambda world: world.quota(LEAD, "p-lab", sandboxes=1000),
    lambda world: world.quota(AGENT, "p-lab"),
    lambda world: world.quota(LEAD, "p-default"),
    lambda world: world.quota(ADMIN, "p-default", sandboxes=1),
    lambda world: world.quota(RIVAL, "p-run"),
    lambda world: world.project(RIVAL, "p-spy", "p-lab"),
    lambda world: world.project(AGENT, "p-spy", "p-lab"),
    lambda world: world.project(AGENT, "p-spy", "p-nowhere"),
    lambda world: world.principal(RIVAL, "u-spy", "p-run"),
    lambda world: world.principal(AGENT, "u-spy", "p-lab"),
    lambda world: world.principal(LEAD, "u-spy", "p-default"),
    lambda world: world.revoke(RIVAL, "u-agent"),
    lambda world: world.revoke(AGENT, "u-lead"),
    lambda world: world.revoke(AGENT, "u-agent"),
    lambda world: world.revoke(LEAD, "u-admin"),
    lambda world: world.revoke(LEAD, "u-nobody"),
    lambda world: world.revoke(ADMIN, "core"),
    lambda world: world.directory.principals(LEAD, asked(ListPrincipals, project="p-rival")),
]


@pytest.mark.parametrize("attempt", ABOVE_AND_BESIDE)
def test_what_lies_above_or_beside_looks_as_if_it_did_not_exist(
    world: World, attempt: Callable[[World], object]
) -> None:
    before = (world.names(ADMIN), world.people(ADMIN))
    with pytest.raises((GoneError, ValidationError)):
        attempt(world)
    assert (world.names(ADMIN), world.people(ADMIN)) == before


def test_nobody_hands_on_a_right_that_it_does_not_have(world: World) -> None:
    with pytest.raises(PolicyError, match="exec") as caught:
        world.principal(AGENT, "u-worker", rights=("exec",))
    assert caught.value.field == "rights"
    with pytest.raises(SpecError, match="flying") as spec:
        world.principal(AGENT, "u-worker", rights=("flying",))
    assert spec.value.field == "rights"
    with pytest.raises(SpecError, match="at least one"):
        world.principal(AGENT, "u-worker", rights=())


@pytest.mark.parametrize("who", [Who("p-lab", "u-agent"), Who("p-run", "u-lead"), Who("p-lab", "u-none")])
def test_a_principal_in_a_project_that_is_not_its_own_has_no_authority(world: World, who: Who) -> None:
    with pytest.raises(PolicyError):
        world.project(who, "p-spy")
    with pytest.raises(PolicyError):
        world.names(who)


def test_who_has_no_right_to_delegate_does_not(world: World) -> None:
    world.principal(LEAD, "u-plain", rights=("sandbox",))
    with pytest.raises(PolicyError, match="iam"):
        world.project(Who("p-lab", "u-plain"), "p-spy")


def test_in_its_own_project_a_principal_revokes_only_whom_it_made(world: World) -> None:
    world.principal(LEAD, "u-one", rights=RIGHTS)
    world.principal(LEAD, "u-two", rights=RIGHTS)
    one = Who("p-lab", "u-one")
    world.principal(one, "u-three", rights=RIGHTS)
    world.principal(Who("p-lab", "u-three"), "u-four")
    for other in ("u-two", "u-lead"):
        with pytest.raises(GoneError):
            world.revoke(one, other)
    assert world.revoke(one, "u-four") == ["u-four"]
    assert world.revoke(LEAD, "u-one") == ["u-one", "u-three"]


def test_who_is_revoked_takes_along_whom_it_made_or_leaves_them_to_the_revoker(world: World) -> None:
    world.principal(AGENT, "u-worker")
    assert world.revoke(LEAD, "u-agent", keep_made=True) == ["u-agent"]
    assert world.revoke(LEAD, "u-worker") == ["u-worker"]
    with pytest.raises(PolicyError):
        world.project(AGENT, "p-spy")


def test_a_repeated_operation_is_done_once_and_another_under_its_key_is_a_conflict(world: World) -> None:
    request = asked(CreateProject, project="p-new", op="the-key")
    first = world.change(lambda: world.directory.create_project(LEAD, request))
    assert world.change(lambda: world.directory.create_project(LEAD, request)) == first
    with pytest.raises(Conflict) as caught:
        world.directory.create_project(LEAD, asked(CreateProject, project="p-other", op="the-key"))
    assert caught.value.field == "op"
    with pytest.raises(Conflict):
        world.project(LEAD, "p-new")


@pytest.mark.parametrize(("name", "key"), [("u-rival", None), ("u-fresh", "taken")])
def test_names_and_keys_belong_to_one_principal(world: World, name: str, key: str | None) -> None:
    taken = public()
    first = asked(CreatePrincipal, principal="u-first", public=taken)
    world.change(lambda: world.directory.create_principal(LEAD, first))
    request = asked(CreatePrincipal, principal=name, public=taken if key else public())
    with pytest.raises(Conflict) as caught:
        world.directory.create_principal(LEAD, request)
    assert caught.value.field == ("public" if key else "principal")


@pytest.mark.parametrize(
    ("model", "fields", "at"),
    [
        (CreateProject, {"project": "p-a.b"}, "project"),
        (CreateProject, {"project": "p-a/b"}, "project"),
        (CreateProject, {"project": "p-a", "quota": {"sandboxs": 1}}, "quota.sandboxs"),
        (CreateProject, {"project": "p-a", "quota": {"sandboxes": -1}}, "quota.sandboxes"),
        (CreateProject, {"project": "p-a", "quota": {"cpu": float("nan")}}, "quota.cpu"),
        (CreateProject, {"project": "p-a", "quotas": {}}, "quotas"),
        (SetQuota, {"project": "p-a"}, "quota"),
        (CreatePrincipal, {"principal": "u-a", "public": "SUAB"}, "public"),
        (CreatePrincipal, {"principal": "core", "public": "U" + "A" * 55}, "principal"),
        (RevokePrincipal, {"principal": "u-*"}, "principal"),
        (ListProjects, {"limit": 0}, "limit"),
    ],
)
def test_bad_input_is_named_by_its_field(model: type[Request], fields: dict[str, Any], at: str) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"op": "op", "deadline": 0} | fields)
    assert [".".join(str(part) for part in one["loc"]) for one in caught.value.errors()] == [at]


def test_who_may_revoke_may_rotate_and_everybody_its_own_key(world: World) -> None:
    old = world.tables.member("u-agent")
    assert old is not None
    fresh = public()

    def rotate(who: Who, principal: str, key: str) -> None:
        request = asked(RotatePrincipal, principal=principal, public=key)
        world.change(lambda: world.directory.rotate(who, request))

    rotate(LEAD, "u-agent", fresh)
    assert world.tables.find(old.public) is None
    found = world.tables.find(fresh)
    assert found is not None
    assert (found.owner, found.rights) == ("u-agent", ("iam", "sandbox"))
    rotate(AGENT, "u-agent", public())
    assert world.tables.find(fresh) is None
    for who, principal in ((AGENT, "u-lead"), (RIVAL, "u-agent"), (LEAD, "u-admin"), (LEAD, "u-nobody")):
        with pytest.raises(GoneError):
            rotate(who, principal, public())
    taken = world.tables.member("u-rival")
    assert taken is not None
    with pytest.raises(Conflict):
        rotate(LEAD, "u-agent", taken.public)


@pytest.mark.parametrize("keep_made", [False, True])
def test_a_revocation_of_thousands_goes_in_parts_that_can_be_repeated(world: World, keep_made: bool) -> None:
    """Children and grandchildren; each part leaves nobody whose maker is gone."""
    for at in range(1200):
        name = f"u-many-{at}"
        by = "u-agent" if at < 1000 else f"u-many-{at - 1000}"
        member = Member(name, "U" + name, "tenant", "p-run", name, rights=("iam",), by=by)
        world.tables.apply([(member.key, member.encoded())])
    request = asked(RevokePrincipal, principal="u-agent", keep_made=keep_made)
    parts = 0
    while world.change(lambda: world.directory.prune(LEAD, request)):
        parts += 1
        for owner in world.tables.made("u-agent"):
            assert "u-agent" in world.tables.makers(owner)
    assert parts == 1
    answer = world.change(lambda: world.directory.revoke(LEAD, request))
    assert not world.change(lambda: world.directory.prune(LEAD, request))
    assert world.change(lambda: world.directory.revoke(LEAD, request)) == answer
    assert world.tables.member("u-agent") is None
    assert len(world.tables.made("u-lead")) == (1200 if keep_made else 0)


def test_projects_of_the_operators_principals_lie_below_the_root(world: World) -> None:
    world.operators("p-solo", "u-solo")
    assert "p-solo" in world.names(ADMIN)
    world.quota(ADMIN, "p-solo", sandboxes=3)
    assert world.directory.bounds("p-solo").bounds == [
        Project(project="p-solo", parent="p-default", quota=Quota(sandboxes=3))
    ]
    assert world.project(Who("p-solo", "u-solo"), "p-sub")["parent"] == "p-solo"


def test_bounds_are_those_that_have_a_quota_nearest_first(world: World) -> None:
    world.project(AGENT, "p-try")
    assert [one.project for one in world.directory.bounds("p-try").bounds] == ["p-run", "p-lab"]
    assert world.directory.bounds("p-default").bounds == []
    assert world.directory.subtree("p-lab").projects == ["p-lab", "p-run", "p-try"]


def test_lists_come_in_pages(world: World) -> None:
    page = world.directory.projects(ADMIN, asked(ListProjects, limit=3))
    assert ([one.project for one in page.projects], page.more) == (["p-default", "p-lab", "p-rival"], True)
    rest = world.directory.projects(ADMIN, asked(ListProjects, limit=3, after="p-rival"))
    assert ([one.project for one in rest.projects], rest.more) == (["p-run"], False)


QUOTAS = st.fixed_dictionaries(
    {}, optional={"sandboxes": st.integers(0, 20), "cpu": st.floats(0, 8), "memory": st.integers(0, 100)}
)


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 5), QUOTAS), max_size=8))
def test_however_it_is_delegated_no_quota_exceeds_one_above(
    steps: list[tuple[int, dict[str, Any]]],
) -> None:
    world = World()
    names = ["p-run"]
    for number, (at, quota) in enumerate(steps):
        try:
            world.project(LEAD, f"p-{number}", names[at % len(names)], **quota)
        except DsecError:
            continue
        names.append(f"p-{number}")
    for name in names:
        bounds = world.directory.bounds(name).bounds
        for near, far in itertools.combinations(bounds, 2):
            for quantity in QUANTITIES:
                values = getattr(near.quota, quantity), getattr(far.quota, quantity)
                assert None in values or values[0] <= values[1]
