"""What a stop gives back to the node and what it keeps, and a start that finds no room."""

from __future__ import annotations

import pytest

from dsec.bus.errors import NoCapacity
from dsec.bus.messages import State
from dsec.bus.spec import MIB, Limits
from dsec.plugins import edge
from dsec.plugins.edge.admission import Capacity, Load, load
from dsec.plugins.edge.sandboxes import _held
from dsec.sdk.spec_args import SpecArgs
from tests.edge.support import Site, stored
from tests.edge.test_journal import record

SPEC: SpecArgs = {"backend": "container", "image": "base", "limits": {"memory": 200 * MIB}}


def test_a_stopped_sandbox_keeps_its_place_and_gives_back_all_else() -> None:
    running = record().model_copy(update={"applied": Limits(cpu=2, memory=1 << 30)})
    stopped = running.model_copy(update={"state": State.STOPPED})
    assert load([_held(running)]) == Load(sandboxes=1, cpu=2, memory=1 << 30)
    assert load([_held(stopped)]) == Load(sandboxes=1)


@pytest.mark.node
async def test_a_start_without_room_is_refused_and_it_stays_stopped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Capacity(cpu=64, memory=300 * MIB, memory_overcommit=1.0, disk_reserve=0)
    monkeypatch.setattr(edge, "machine", lambda: small)
    async with site.edge(drain=True), site.client() as client:
        first = await client.create(**SPEC)
        await first.run("echo kept > /kept")
        await first.stop()
        second = await client.create(**SPEC)  # in the room that was given back
        with pytest.raises(NoCapacity, match="memory"):
            await first.start()
        assert (await first.stat()).state is State.STOPPED
        await second.destroy()
        await first.start()
        assert (await first.run("cat /kept")).stdout == "kept\n"
    ops = [b'"op":"sandbox.stop"', b'"op":"sandbox.start"']
    for op, verb in zip(ops, ("stop", "start"), strict=True):
        entries = await stored(site.stack, "AUDIT", f"audit.edge.{verb}.>")
        assert [entry for entry in entries if first.id.encode() in entry.data and op in entry.data]
