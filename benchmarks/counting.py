"""What a control plane has kept of creates: claims, records, events, audits, journals, counted one by one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from dsec.bus import subjects
from dsec.bus.home import Home
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.directget import DirectGet
from dsec.bus.nats.wire import Wire
from dsec.sdk.testing import platform

SETTLE = 0.5
"""Seconds after the last answer in which registry, events and audits must follow."""


@dataclass(slots=True)
class Counted:
    """`lost`: acknowledged sandboxes that are missing somewhere; `duplicated`: what is there more than once,
    or under no claim. `counts`: how many of the acknowledged ones each place has."""

    lost: int = 0
    duplicated: int = 0
    counts: dict[str, int] = field(default_factory=dict)


async def counted(part: platform.Part, made: Mapping[str, str]) -> Counted:
    """Look for each of `made` (key to sandbox id, as acknowledged) everywhere."""
    await asyncio.sleep(SETTLE)
    home = Home(Path(part.ready["home"]))
    who = Credentials.load(home.credentials / "operator.json")
    async with Wire.connect(part.url, who) as wire, DirectGet.running(wire) as reader:
        claimed = await claims(reader)
        places = {
            "claimed": Counter(claimed.values()),
            "journalled": await asyncio.to_thread(journalled, home.part("sim") / "journal.jsonl"),
            "registered": await last_tokens(
                reader, "KV_registry", subjects.kv(subjects.REGISTRY_BUCKET, ">")
            ),
            "told": await last_tokens(reader, "EVENT", "event.created.>"),
            "audited_core": await _audited(reader, "core"),
            "audited_edge": await _audited(reader, "edge"),
        }
    acknowledged = set(made.values())
    missing = {one for one in acknowledged if any(one not in place for place in places.values())}
    wrong = [key for key, sandbox in made.items() if claimed.get(key) != sandbox]
    once = ("journalled", "registered", "told")  # a create that is repeated is audited each time
    twice = {one for name in once for one, n in places[name].items() if n > 1}
    unclaimed = set(places["journalled"]) - set(claimed.values())
    return Counted(
        lost=len(missing) + len(wrong),
        duplicated=len(twice | unclaimed) + len(made) - len(acknowledged),
        counts={name: sum(one in place for one in acknowledged) for name, place in places.items()},
    )


async def pages(reader: DirectGet, stream: str, subject: str) -> set[tuple[str, bytes]]:
    """Subjects and bodies. An entry whose acknowledgement was late is appended again, byte for byte: one."""
    found: set[tuple[str, bytes]] = set()
    sequence = 1
    while True:
        batch = await reader.batch(stream, subject, sequence, count=1000, max_bytes=4 << 20)
        found |= {(one.subject, one.data) for one in batch.messages}
        if not batch.pending or not batch.messages:
            return found
        sequence = batch.messages[-1].sequence + 1


async def claims(reader: DirectGet) -> dict[str, str]:
    """Sandbox id by key."""
    found = await pages(reader, "KV_ops", subjects.kv(subjects.OPS_BUCKET, ">"))
    return {subject.rpartition(".")[2]: orjson.loads(data)["sandbox"] for subject, data in found}


async def last_tokens(reader: DirectGet, stream: str, subject: str) -> Counter[str]:
    """How often each last token of a subject, a sandbox's id, stands there."""
    return Counter(at.rpartition(".")[2] for at, _ in await pages(reader, stream, subject))


async def _audited(reader: DirectGet, writer: str) -> Counter[str]:
    """Creates that `writer` audited as done, by sandbox."""
    entries = (orjson.loads(data) for _, data in await pages(reader, "AUDIT", f"audit.{writer}.create.*"))
    return Counter(entry["target"] for entry in entries if entry["outcome"] == "ok")


def journalled(path: Path) -> Counter[str]:
    """Creates in a journal of simulated nodes, by sandbox."""
    with path.open("rb") as lines:
        entries = (orjson.loads(line) for line in lines)
        return Counter(entry["record"]["sandbox"] for entry in entries if entry["what"] == "create")
