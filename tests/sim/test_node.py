"""A simulated node through the SDK: lifecycle, commands, faults by class, deaths, kill -9."""

from __future__ import annotations

import asyncio
import signal

import orjson
import pytest

from dsec.bus.errors import (
    Conflict,
    DsecError,
    Failure,
    InfraError,
    LimitError,
    NoCapacity,
    NoSuchSandbox,
    PolicyError,
    SpecError,
)
from dsec.bus.messages import Audit, Event, Record, State
from dsec.plugins.sim import Deaths, Delay, Fault, Outcome, SimConfig
from dsec.sdk import Client
from tests.sim.support import Plane, end, spawn_sim


async def test_a_sandbox_is_made_told_listed_and_destroyed(control: Plane, client: Client) -> None:
    async with control.nodes() as nodes:
        async with client.sandbox(backend="sim", image="any", limits={"pids": 64}) as sandbox:
            assert sandbox.record.state is State.RUNNING
            assert sandbox.record.applied.pids == 64
            assert sandbox.record.applied.nofile is not None
            assert sandbox.record.node in nodes
            assert (await sandbox.stat()) == sandbox.record
            assert sandbox.id in {record.sandbox async for record in client.list()}
        with pytest.raises(NoSuchSandbox):
            await sandbox.stat()
        await sandbox.destroy()
        await asyncio.sleep(0.1)
        assert sandbox.id not in {record.sandbox async for record in client.list()}
        assert sum(node.sandboxes for node in nodes.values()) == 0


async def test_one_key_makes_one_sandbox(control: Plane, client: Client) -> None:
    async with control.nodes() as nodes:
        made = await asyncio.gather(
            *(client.create(backend="sim", image="any", key="the-one") for _ in range(20))
        )
        assert len({one.id for one in made}) == 1
        with pytest.raises(Conflict):
            await client.create(backend="sim", image="other", key="the-one")
        assert sum(node.sandboxes for node in nodes.values()) == 1
        await made[0].destroy()


async def test_a_create_is_claimed_registered_told_and_audited(control: Plane, client: Client) -> None:
    async with control.nodes():
        sandbox = await client.create(backend="sim", image="any", key="watched")
        await asyncio.sleep(0.2)
        (claim,) = await control.stored("KV_ops", "$KV.ops.*.watched")
        assert orjson.loads(claim.data)["sandbox"] == sandbox.id
        (entry,) = await control.stored("KV_registry", f"$KV.registry.*.*.{sandbox.id}")
        assert Record.model_validate_json(entry.data) == sandbox.record
        (event,) = await control.stored("EVENT", f"event.created.*.*.{sandbox.id}")
        assert Event.model_validate_json(event.data).record == sandbox.record
        for writer in ("core", "edge"):
            audits = [
                Audit.model_validate_json(one.data)
                for one in await control.stored("AUDIT", f"audit.{writer}.create.*")
            ]
            assert [one.outcome for one in audits if one.target == sandbox.id] == ["ok"]
        await sandbox.destroy()


async def test_a_command_has_the_configured_outcome_and_is_in_the_log(control: Plane, client: Client) -> None:
    outcomes = (Outcome(argv=("make",), stdout="built\n", code=2), Outcome(stdout="else\n"))
    async with (
        control.nodes(SimConfig(outcomes=outcomes)),
        client.sandbox(backend="sim", image="any") as sandbox,
    ):
        made = await sandbox.run(["make", "all"], key="make-it")
        assert (made.stdout, made.code, made.log) == ("built\n", 2, 1)
        again = await sandbox.run(["make", "all"], key="make-it")
        assert (again.stdout, again.code, again.log) == ("built\n", 2, 1)
        other = await sandbox.run(["ls"], durable=True)
        assert (other.stdout, other.log) == ("else\n", 2)
        assert len(await control.stored("EXEC", f"exec.stream.*.*.{sandbox.id}.>")) == 2


async def test_a_command_that_takes_too_long_ends_by_its_timeout(control: Plane, client: Client) -> None:
    config = SimConfig(outcomes=(Outcome(wall_ms=60_000),))
    async with control.nodes(config), client.sandbox(backend="sim", image="any") as sandbox:
        ended = await sandbox.run(["sleep", "60"], timeout=0.2)
        assert (ended.ended, ended.code) == ("timeout", None)


async def test_a_paused_sandbox_runs_nothing_until_it_is_resumed(control: Plane, client: Client) -> None:
    async with control.nodes(), client.sandbox(backend="sim", image="any") as sandbox:
        assert (await sandbox.pause()).state is State.PAUSED
        with pytest.raises(SpecError):
            await sandbox.run(["true"])
        assert (await sandbox.resume()).state is State.RUNNING
        assert (await sandbox.run(["true"])).code == 0


async def test_time_to_live_and_idleness_end_a_sandbox(control: Plane, client: Client) -> None:
    async with control.nodes() as nodes:
        short = await client.create(backend="sim", image="any", ttl=1.5)
        idle = await client.create(backend="sim", image="any", idle_ttl=0.7)
        renewed = await client.create(backend="sim", image="any", ttl=1.5)
        await renewed.renew(60)
        await asyncio.sleep(2.2)
        for gone in (short, idle):
            with pytest.raises(NoSuchSandbox):
                await gone.stat()
        assert (await renewed.stat()).state is State.RUNNING
        await renewed.destroy()
        assert all(node.sandboxes == 0 for node in nodes.values())


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (Failure.INFRA, InfraError),
        (Failure.LIMIT, LimitError),
        (Failure.POLICY, PolicyError),
        (Failure.SPEC, SpecError),
    ],
)
async def test_a_configured_fault_arrives_typed_with_its_class(
    control: Plane, client: Client, failure: Failure, error: type[DsecError]
) -> None:
    faults = (Fault(verb="create", failure=failure, rate=0.5, message="as configured"),)
    async with control.nodes(SimConfig(faults=faults, seed=3)):
        outcomes = await asyncio.gather(
            *(client.create(backend="sim", image="any") for _ in range(60)), return_exceptions=True
        )
        failed = [one for one in outcomes if isinstance(one, BaseException)]
        assert 10 < len(failed) < 50
        assert {type(one) for one in failed} == {error}
        assert {str(one) for one in failed} == {"as configured"}
        await asyncio.gather(*(one.destroy() for one in outcomes if not isinstance(one, BaseException)))


async def test_a_death_is_a_failed_record_and_an_event_of_its_class(control: Plane, client: Client) -> None:
    deaths = Deaths(mean=0.2, failure=Failure.LIMIT, reason="out of luck")
    async with control.nodes(SimConfig(deaths=deaths, seed=1)):
        made = [await client.create(backend="sim", image="any") for _ in range(4)]
        await asyncio.sleep(2.5)
        for sandbox in made:
            record = await sandbox.stat()
            assert (record.state, record.failure, record.reason) == (
                State.FAILED,
                Failure.LIMIT,
                "out of luck",
            )
            (event,) = await control.stored("EVENT", f"event.failed.*.*.{sandbox.id}")
            assert Event.model_validate_json(event.data).record == record
            with pytest.raises(LimitError, match="out of luck"):
                await sandbox.run(["true"])
            await sandbox.destroy()


async def test_a_full_node_gives_the_order_back_and_another_takes_it(control: Plane, client: Client) -> None:
    async with control.nodes(SimConfig(sandboxes=5)) as nodes:
        made = [await client.create(backend="sim", image="any") for _ in range(15)]
        assert [node.sandboxes for node in nodes.values()] == [5, 5, 5]
        with pytest.raises(NoCapacity, match="has its 5 sandboxes"):
            await client.create(backend="sim", image="any", timeout=3)
        await asyncio.gather(*(one.destroy() for one in made))


async def test_a_killed_process_loses_nothing_that_it_acknowledged(control: Plane, client: Client) -> None:
    home = control.home.path
    process = await spawn_sim(home)
    made: dict[str, Record] = {}
    enough = asyncio.Event()

    async def create(number: int) -> None:
        try:
            sandbox = await client.create(backend="sim", image="any", key=f"k9-{number}", timeout=2)
        except DsecError:
            return  # not acknowledged
        made[f"k9-{number}"] = sandbox.record
        if len(made) == 100:
            enough.set()

    creating = [asyncio.ensure_future(create(number)) for number in range(400)]
    await enough.wait()
    await end(process, signal.SIGKILL)
    await asyncio.gather(*creating)
    assert len(made) >= 100
    process = await spawn_sim(home)
    try:
        for key, record in made.items():
            sandbox = await client.attach(record.sandbox)
            assert sandbox.record == record.model_copy(update={"epoch": record.epoch + 1})
            assert (await client.create(backend="sim", image="any", key=key)).id == record.sandbox
    finally:
        await end(process)


async def test_two_processes_cannot_simulate_the_same_nodes(control: Plane) -> None:
    process = await spawn_sim(control.home.path)
    try:
        with pytest.raises(AssertionError):
            await spawn_sim(control.home.path)
    finally:
        await end(process)


async def test_delays_are_kept(control: Plane, client: Client) -> None:
    async with control.nodes(SimConfig(delays={"create": Delay(least=200, most=250)})):
        started = asyncio.get_running_loop().time()
        sandbox = await client.create(backend="sim", image="any")
        assert asyncio.get_running_loop().time() - started >= 0.2
        await sandbox.destroy()
