"""How records read while their node is away."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dsec.bus import ids
from dsec.bus.core.outlook import seen
from dsec.bus.messages import ListSandboxes, NodeStatus, Sandboxes, Standing, State
from tests.control.cluster import Cluster, now_ms
from tests.fencing.support import Quiet, of_node


def status(standing: Standing, *, epoch: int = 1, fenced: int = 0) -> NodeStatus:
    return NodeStatus(node="n-a", standing=standing, epoch=epoch, fenced=fenced, silent=7)


@pytest.mark.parametrize("state", [State.RUNNING, State.PAUSED])
def test_a_live_sandbox_of_a_suspect_node_reads_unknown(state: State) -> None:
    record = of_node("n-a", "suspect").model_copy(update={"state": state})
    assert seen(record, {"n-a": status(Standing.SUSPECT)}).state is State.UNKNOWN
    assert seen(record, {"n-a": status(Standing.ALIVE)}) == record
    assert seen(record, {"n-b": status(Standing.SUSPECT)}) == record


@pytest.mark.parametrize("state", [State.FAILED, State.DESTROYED])
def test_what_has_ended_stays_as_it_ended(state: State) -> None:
    record = of_node("n-a", "ended").model_copy(update={"state": state})
    assert seen(record, {"n-a": status(Standing.FAILED, fenced=1)}) == record


def test_a_fenced_life_reads_unknown_until_it_is_written_down_and_the_next_life_as_it_is() -> None:
    back = {"n-a": status(Standing.ALIVE, epoch=2, fenced=1)}
    assert seen(of_node("n-a", "before", epoch=1), back).state is State.UNKNOWN
    assert seen(of_node("n-a", "after", epoch=2), back).state is State.RUNNING


@pytest.fixture
async def node(cluster: Cluster) -> AsyncIterator[Quiet]:
    async with Quiet.running(cluster, "n-list") as node:
        yield node


async def test_a_list_names_one_sandbox_or_none(cluster: Cluster, node: Quiet) -> None:
    wanted, other = of_node("n-list", "wanted"), of_node("n-list", "other")
    for record in (wanted, other):
        node.registrar.put(record, fresh=True)
        await node.held(record)

    async def listed(sandbox: str) -> list[str]:
        query = ListSandboxes(op=ids.new_operation(), deadline=now_ms(5), sandbox=sandbox)
        answer = await cluster.ask("sandbox", "list", query.model_dump_json().encode())
        return [record.sandbox for record in Sandboxes.model_validate(answer).sandboxes]

    assert await listed(wanted.sandbox) == [wanted.sandbox]
    assert await listed("s-list-nosuch") == []
