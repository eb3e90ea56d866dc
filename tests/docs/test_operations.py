"""What docs/operations.md tells an operator to type: each line is tried, `nats` as a request on the wire."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from dsec.bus import subjects
from dsec.bus.home import Home
from dsec.bus.ids import node_of
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.bus.transport import Received
from dsec.plugins.iam.rights import STREAMS
from dsec.sdk import Sandbox
from dsec.sdk.testing import platform
from tests.docs.documents import ROOT, commands, finished, shell

pytestmark = pytest.mark.node
TEXT = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
LINES = commands("docs/operations.md")
NATS = [
    match for line in LINES if (match := re.search(r"\bnats .*?(req|sub) '([^']+)'(?: '([^']*)')?", line))
]
IDENTITIES = [line for line in LINES if re.search("p-lab|u-ann|n-second", line)]
BACKUP = [line for line in LINES if "/backup" in line]
KEYS = [line for line in LINES if line.startswith(("cd ", "python3 ", "export "))]


def test_every_noun_that_a_tenant_may_ask_under_is_told() -> None:
    table = TEXT[TEXT.index("What is not stored") : TEXT.index("Signs of trouble")]
    nouns = {noun for noun, _ in subjects.TENANT_VERBS}
    assert {noun for noun in nouns if f"`{noun}." not in table} == set()
    streams = TEXT[TEXT.index("| stream | subjects |") : TEXT.index("What is not stored")]
    assert {one for one in STREAMS if f"| `{one}` |" not in streams} == set()


async def test_a_cluster_is_configured_as_told(tmp_path: Path) -> None:
    (line,) = re.findall(r"one# (dsec broker config .*?)\n```", TEXT.replace("\\\n", ""), re.DOTALL)
    for place in ("/var/lib/dsec", "/root/brokers"):
        line = line.replace(place, str(tmp_path) + place)
    url = await finished(await shell(line, tmp_path))
    told = re.search(r"--only control --broker '(.*?)'", TEXT)
    assert told
    assert url.strip() == told[1].replace("/root", f"{tmp_path}/root")
    assert (tmp_path / "root/brokers/nats-3/nats.json").is_file()


async def test_identities_are_made_and_removed_as_told(live: platform.Part, home: Path) -> None:
    assert len(IDENTITIES) == 6
    made = [(await finished(await shell(line, home))).strip() for line in IDENTITIES]
    files = [str(home / "credentials" / name) for name in ("u-ann.json", "n-second.json")]
    assert made == ["p-lab", files[0], files[0], "u-ann", files[1], ""]


async def test_a_back_up_is_made_checked_and_restored_as_told(
    live: platform.Part, home: Path, tmp_path: Path
) -> None:
    assert len(BACKUP) == 3
    for line in BACKUP:
        here = line.replace("/backup", str(tmp_path / "backup")).replace("/srv/dsec", str(tmp_path / "new"))
        await finished(await shell(here, home))
    assert (tmp_path / "new" / "broker" / "jetstream").is_dir()


async def test_keys_are_rotated_as_told_and_the_platform_goes_on(
    live: platform.Part, home: Path, sandbox: Sandbox
) -> None:
    assert "python -m dsec.plugins.iam rotate n-a" in (ROOT / "docs/operations.md").read_text()
    for name in (node_of(sandbox.id), "core", "issuer"):
        await finished(await shell(f"python -m dsec.plugins.iam rotate {name}", home))
        assert (await sandbox.run("echo on")).stdout == "on\n"


async def test_the_operators_key_is_extracted_as_told(live: platform.Part, home: Path) -> None:
    assert len(KEYS) == 3
    script = "\n".join((*KEYS, "echo $NATS_URL; stat -c %a $NATS_NKEY; cut -c 1-2 $NATS_NKEY; rm $NATS_NKEY"))
    told = await finished(await shell(script.replace("/var/lib/dsec", str(home)), home))
    assert told.split() == [live.url, "600", "SU"]


async def test_the_operator_may_ask_all_that_is_told(
    live: platform.Part, home: Path, sandbox: Sandbox
) -> None:
    assert len(NATS) >= 7
    await sandbox.run("true", durable=True)
    who = await asyncio.to_thread(Credentials.load, Home(home).credentials / "operator.json")
    async with Wire.connect(live.url, who) as wire:
        for verb, subject, body in (match.groups() for match in NATS):
            if verb == "sub":
                await (await wire.subscribe(subject, _ignore)).unsubscribe()
                continue
            answer = await wire.request(subject, (body or "").encode(), timeout=5)
            assert answer.data, subject
            assert b'"error"' not in answer.data, subject


def _ignore(message: Received) -> None:
    del message
