"""The main job on real containers, with one task: rewards, and what they cannot be got by."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.sdk.sandbox import Sandbox
from examples.swe_rollouts import installation, material
from examples.swe_rollouts.__main__ import main
from examples.swe_rollouts.agents import cheating_files, lure, reference, replace_programs, spoiled
from examples.swe_rollouts.rollout import Gate, Outcome, Plan, Trainer
from examples.swe_rollouts.tasks import TASKS, Task

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
TASK = TASKS["wcwidth"]


@pytest.fixture(scope="module")
async def trainer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trainer]:
    material.ensure([TASK])
    async with installation.temporary(tmp_path_factory.mktemp("demo") / "home") as home:
        layers = await installation.import_layers(home, [TASK], print)
        async with installation.running(home, print) as ready, installation.connected(ready) as client:
            yield Trainer(client, layers, Gate(1), "test")
    assert not home.path.exists()


async def test_half_of_the_reference_patch_is_worth_nothing(trainer: Trainer) -> None:
    outcome = await trainer.rollout(Plan(1, TASK, "spoiled", spoiled))
    assert (outcome.reward, outcome.failure) == (0, None)
    assert any("test_kr_jamo" in reason for reason in outcome.reasons)


async def reference_among_cheats(sandbox: Sandbox, task: Task) -> None:
    await reference(sandbox, task)
    for path, text in cheating_files(task).items():
        await sandbox.files.write(path, text.encode())
    await lure(sandbox, task)
    await replace_programs(sandbox)


async def test_nothing_that_lies_outside_the_package_reaches_grading(trainer: Trainer) -> None:
    """With an honest patch the reward is one, so neither the edited tests nor a broken Python ran."""
    outcome = await trainer.rollout(Plan(2, TASK, "reference", reference_among_cheats))
    assert (outcome.reward, outcome.reasons) == (1, ())


async def test_a_sandbox_that_is_gone_is_no_reward_of_zero_by_infra(trainer: Trainer) -> None:
    async def destroyed(sandbox: Sandbox, _task: Task) -> None:
        await sandbox.destroy()

    outcome = await trainer.rollout(Plan(3, TASK, "none", destroyed))
    assert outcome.failure == "gone"
    assert outcome.attempts == 1


def test_every_agent_gets_what_it_is_worth(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    arguments = [
        "--tasks",
        "wcwidth",
        "--rollouts",
        "4",
        "--home",
        str(tmp_path / "home"),
        "--report",
        str(target),
    ]
    assert main(arguments) == 0
    report = json.loads(target.read_text())
    outcomes = [Outcome(**entry) for entry in report["rollouts"]]
    assert {one.agent: one.reward for one in outcomes} == {"reference": 1, "wrong": 0, "none": 0, "cheat": 0}
    assert {one.failure for one in outcomes} == {None}
    assert report["alive_at_once"] == 4
    assert all(one.latencies["create"] > 0 and one.latencies["grade"] > 0 for one in outcomes)
    assert not (tmp_path / "home").exists()


def test_an_interrupted_job_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    job_of_a_terminal = ["env", "--default-signal=INT"]  # a shell's background job is born deaf to it
    command = [sys.executable, "-m", "examples.swe_rollouts", "--tasks", "wcwidth", "--rollouts", "4"]
    with subprocess.Popen(
        [*job_of_a_terminal, *command, "--home", str(home), "--report", str(tmp_path / "report.json")],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    ) as job:
        until = time.monotonic() + 60
        while not list(home.glob("nodes/*/images/sandboxes/*")) and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(job.pid, signal.SIGINT)
        assert job.wait(60) == 130
    assert not home.exists()
    assert str(home) not in Path("/proc/self/mountinfo").read_text()
    assert not (tmp_path / "report.json").exists()
