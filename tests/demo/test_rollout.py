"""Rollouts wait for one another to be alive at once, and never for one that cannot come."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from examples.swe_rollouts import report
from examples.swe_rollouts.__main__ import options, plans
from examples.swe_rollouts.rollout import Gate, Outcome
from examples.swe_rollouts.tasks import TASKS


async def test_nobody_passes_before_all_have_come() -> None:
    gate = Gate(3)
    early = [asyncio.create_task(gate.arrive(who)) for who in (0, 1)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in early)
    await gate.arrive(2)
    await asyncio.gather(*early)
    assert gate.peak == 3


async def test_one_that_gave_up_holds_nobody_up() -> None:
    gate = Gate(2)
    waiting = asyncio.create_task(gate.arrive(0))
    await asyncio.sleep(0.01)
    gate.give_up(1)
    await waiting
    assert gate.peak == 1


async def test_one_that_comes_again_is_counted_once() -> None:
    gate = Gate(2)
    first = asyncio.create_task(gate.arrive(0))
    again = asyncio.create_task(gate.arrive(0))
    await asyncio.sleep(0.01)
    assert not first.done()
    assert not again.done()
    await gate.arrive(1)
    await asyncio.gather(first, again)
    assert gate.peak == 2


def test_plans_take_every_pair_in_turn() -> None:
    todo = plans(list(TASKS.values()), 80, spoil=False)
    pairs = [(plan.task.name, plan.agent_name) for plan in todo]
    assert len(set(pairs)) == 20
    assert all(pairs.count(pair) == 4 for pair in pairs)
    assert [plan.index for plan in todo] == list(range(80))


def test_spoiling_replaces_the_reference() -> None:
    names = {plan.agent_name for plan in plans([TASKS["wcwidth"]], 4, spoil=True)}
    assert names == {"spoiled", "wrong", "none", "cheat"}


@pytest.mark.parametrize("arguments", [["--rollouts", "0"], ["--concurrency", "0"], ["--tasks", "nothing"]])
def test_bad_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        options(arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_report_is_as_expected_only_if_every_reward_is_right() -> None:
    good = Outcome("wcwidth", "reference", reward=1, latencies={"create": 1.0})
    for bad in (Outcome("wcwidth", "cheat", reward=1), replace(good, reward=0), replace(good, reward=None)):
        assert report.to_json([good])["as_expected"] is True
        assert report.to_json([good, bad])["as_expected"] is False


def test_an_entry_of_the_report_has_the_keys_that_are_promised() -> None:
    [entry] = report.to_json([Outcome("wcwidth", "none", reward=0)])["rollouts"]
    assert {"task", "agent", "reward", "failure", "latencies"} <= set(entry)
