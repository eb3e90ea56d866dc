"""What the hot path counts, and what becomes of it when somebody looks."""

from __future__ import annotations

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dsec.bus.errors import Overloaded
from dsec.bus.handlers import Call, ok, serving
from dsec.bus.local import Hub
from dsec.bus.metrics import names, text
from dsec.bus.metrics.collect import Snapshot, snapshot
from dsec.bus.metrics.figures import BOUNDS, OTHER, PROJECTS, Figures, Tally
from dsec.bus.metrics.parts import Part, running, seen
from dsec.bus.transport import Received
from dsec.bus.workload import Workload


@given(st.lists(st.integers(0, 10**12)))
def test_a_histogram_counts_each_time_once_below_its_bound(times: list[int]) -> None:
    tally = Tally()
    for ns in times:
        tally.took(ns)
    assert tally.count == len(times)
    assert tally.ns == sum(times)
    for at, bound in enumerate(BOUNDS):
        assert sum(tally.buckets[: at + 1]) == sum(ns <= bound * 1e9 for ns in times)


@given(st.lists(st.integers(0, 3 * PROJECTS), max_size=200))
def test_projects_past_the_limit_are_counted_together(numbers: list[int]) -> None:
    figures = Figures()
    for number in numbers:
        figures.request("sandbox", "create", f"p-{number}").took(1)
    labels = {project for _, _, project in figures.requests}
    assert len(labels - {OTHER}) <= PROJECTS
    assert sum(tally.count for tally in figures.requests.values()) == len(numbers)


def test_what_was_refused_before_any_work_is_counted_and_took_no_time() -> None:
    tally = Tally()
    tally.took(5)
    tally.refused("overloaded")
    assert (tally.count, tally.shed, sum(tally.buckets), tally.codes) == (2, 1, 1, {"overloaded": 1})


def test_sources_are_asked_only_while_their_block_runs() -> None:
    figures = Figures()
    with figures.telling(lambda: [(names.OPEN, (), 1)], check=lambda: "no"):
        assert figures.sources
        assert [check() for check in figures.checks] == ["no"]
    assert not figures.sources
    assert not figures.checks


def test_counting_a_request_costs_less_than_two_microseconds_of_cpu() -> None:
    figures, rounds = Figures(), 20_000
    began = time.process_time()
    for _ in range(rounds):
        figures.request("sandbox", "create", "p-default").took(4_000_000)
    assert (time.process_time() - began) / rounds < 2e-6


async def test_what_a_server_answers_is_counted_by_project_and_code_and_reads_as_prometheus_wants_it() -> (
    None
):
    hub = Hub()
    server, ann = hub.bus("n-a"), hub.bus("u-ann")
    load = Workload()
    server.workload = load  # type: ignore[attr-defined]  # as Wire has one

    async def handle(call: Call) -> bytes:
        if call.address.project == "p-bad":
            raise ValueError("a fault of the platform")
        return ok({})

    async with serving(server, "sandbox.create.*.*", handle):
        for project in ("p-good", "p-good", "p-bad"):
            await ann.request(f"sandbox.create.{project}.u-ann", b"{}", timeout=2)
        await ann.publish("sandbox.create.p-good.u-ann", b"{}", reply="_INBOX.u-bob.x")  # forged
        await asyncio.sleep(0.05)
    with seen("core", "", server):
        page = text.render(await snapshot(running()))
    assert _value(page, "dsec_requests_total", project="p-good", code="ok") == 2
    assert _value(page, "dsec_requests_total", project="p-bad", code="infra", failure="infra") == 1
    assert _value(page, "dsec_requests_unserved_total", part="core") == 1
    assert _value(page, "dsec_request_seconds_count", endpoint="sandbox.create") == 3
    assert _value(page, "dsec_broker_connected", part="core") == 1
    assert not running()


async def test_what_is_shed_before_any_work_is_told_apart_from_what_a_project_has_too_much_of() -> None:
    hub = Hub()
    server, ann = hub.bus("n-a"), hub.bus("u-ann")
    server.workload = Workload()  # type: ignore[attr-defined]  # as Wire has one
    busy = [True]

    async def handle(_: Call) -> bytes:
        raise Overloaded("too many of this project", retry_after=1)

    def shed(_: Received) -> Overloaded | None:
        return Overloaded("too many of all", retry_after=1) if busy[0] else None

    async with serving(server, "sandbox.create.*.*", handle, shed=shed):
        await ann.request("sandbox.create.p-a.u-ann", b"{}", timeout=2)
        busy[0] = False
        for _ in range(2):
            await ann.request("sandbox.create.p-a.u-ann", b"{}", timeout=2)
    page = text.render(await snapshot([Part("core", "", server)]))
    assert _value(page, "dsec_sheds_total", project="p-a", by="load") == 1
    assert _value(page, "dsec_sheds_total", project="p-a", by="project") == 2
    assert _value(page, "dsec_requests_total", project="p-a", code="overloaded") == 3
    assert _value(page, "dsec_request_seconds_count", endpoint="sandbox.create") == 2


async def test_figures_that_are_alike_are_added_up() -> None:
    bus = Hub().bus("n-a")
    bus.workload = load = Workload()  # type: ignore[attr-defined]  # as Wire has one
    with (
        load.figures.telling(lambda: [(names.UNACKED, (), 3)]),
        load.figures.telling(lambda: [(names.UNACKED, (), 4)]),
    ):
        found: Snapshot = await snapshot([Part("edge", "n-a", bus)])
    assert found.values[names.UNACKED] == {("edge", "n-a"): 7}


def _value(page: bytes, name: str, **labels: str) -> float:
    samples = [one for family in text_string_to_metric_families(page.decode()) for one in family.samples]
    return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())
