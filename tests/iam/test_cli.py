"""`dsec project` and `dsec principal` against a running platform, in processes of their own."""

import pytest

from dsec.bus.errors import Unauthenticated
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from tests.cli.conftest import Outcome, dsec_process
from tests.wire.support import Stack


async def test_a_project_and_its_principals_from_the_command_line(stack: Stack) -> None:
    own = str(stack.prepared.path("u-admin"))

    async def dsec(command: str, verb: str, *argv: str, who: str = own) -> Outcome:
        return await dsec_process(command, verb, "--url", stack.url, "--credentials", who, *argv)

    made = await dsec("project", "create", "p-cli", "--sandboxes", "5", "--memory", "2G", "--json")
    assert made.objects[0]["quota"]["memory"] == 2 << 30
    again = await dsec("project", "create", "p-cli")
    assert again.err.startswith("error: conflict: ")
    changed = await dsec("project", "quota", "p-cli", "--cpu", "1.5", "--json")
    assert (changed.objects[0]["quota"]["cpu"], changed.objects[0]["quota"]["sandboxes"]) == (1.5, None)

    added = await dsec(
        "principal", "add", "u-cli", "--project", "p-cli", "--right", "iam", "--right", "sandbox", "--json"
    )
    file = added.objects[0]["credentials"]
    assert added.objects[0] == {"project": "p-cli", "principal": "u-cli", "credentials": file}
    who = Credentials.load(stack.home.credentials / "u-cli.json")
    async with Wire.connect(stack.url, who):
        pass

    listed = await dsec("project", "ls", "--json", who=file)
    assert [one["project"] for one in listed.objects] == ["p-cli"]
    people = await dsec("principal", "ls", "--project", "p-cli")
    assert "u-cli" in people.out
    over = await dsec("project", "create", "p-cli-a", "--cpu", "2", "--json", who=file)
    assert '"field":"quota.cpu"' in over.err
    nowhere = await dsec("principal", "add", "u-lost", "--out", "/dev/null/u-lost.json")
    assert "choose another --out" in nowhere.err

    removed = await dsec("principal", "rm", "u-cli", "--json")
    assert removed.objects == [{"principal": "u-cli", "revoked": True}]
    with pytest.raises(Unauthenticated):
        async with Wire.connect(stack.url, who):
            pass
    everybody = await dsec("principal", "ls", "--json")
    assert not {"u-cli", "u-lost"} & {one["principal"] for one in everybody.objects}
