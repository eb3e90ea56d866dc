"""Every subject is formatted and parsed in one file, and a tenant's rights follow from the same table."""

from fnmatch import fnmatchcase

import pytest

from dsec.bus import subjects
from dsec.bus.errors import BadId

SANDBOX = "s-host1-abcdefgh"
EXEC = "e-0123456789abcdef"


@pytest.mark.parametrize(("noun", "verb"), list(subjects.TENANT_VERBS))
def test_a_request_subject_parses_back_to_its_parts(noun: str, verb: str) -> None:
    depth = subjects.TENANT_VERBS[noun, verb]
    subject = subjects.request(noun, verb, "p-a", "u-b", SANDBOX, EXEC, job="j-d")
    address = subjects.parse(subject)
    assert (address.noun, address.verb, address.project, address.principal) == (noun, verb, "p-a", "u-b")
    assert address.sandbox == (SANDBOX if depth >= 4 else "")
    assert address.node == ("n-host1" if depth >= 4 else "")
    assert address.exec == (EXEC if depth == 5 else "")
    assert address.job == ("j-d" if noun == "job" else "")


@pytest.mark.parametrize(("noun", "verb"), list(subjects.TENANT_VERBS))
def test_rights_cover_exactly_the_own_requests(noun: str, verb: str) -> None:
    mine = subjects.request(noun, verb, "p-a", "u-b", SANDBOX, EXEC, job="j-d")
    others = subjects.request(noun, verb, "p-a", "u-c", SANDBOX, EXEC, job="j-d")
    rights = subjects.tenant_publish("p-a", "u-b")
    assert any(fnmatchcase(mine, right) for right in rights)
    assert not any(fnmatchcase(others, right) for right in rights)


@pytest.mark.parametrize(
    "subject",
    [
        "sandbox.create.p-a",
        "sandbox.stat.p-a.u-b.n-x.*",
        "sandbox.stat.p-a.u-b.n-other." + SANDBOX,
        "sandbox.stat.p-a.u-b.n-host1.s-host1-ab.cd",
        "exec.stream.p-a.n-host1." + SANDBOX + "." + EXEC,
        "node.create.n-host1",
        "$JS.API.STREAM.LIST",
        "",
    ],
)
def test_what_is_not_a_request_is_refused(subject: str) -> None:
    with pytest.raises(BadId):
        subjects.parse(subject)


def test_no_tenant_right_reaches_the_platforms_own_subjects() -> None:
    platform = ["$JS.API.INFO", "$KV.ops.x", "exec.stream.p-a.n.s.e", "event.x.p-a.n.s", "audit.core.x.p-a"]
    for right in subjects.tenant_publish("p-a", "u-b"):
        assert not any(fnmatchcase(subject, right) for subject in [*platform, "node.create.n-a"])
