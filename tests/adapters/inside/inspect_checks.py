"""Inspect AI's own self-check of a sandbox, and one evaluation; run in its environment."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import sandbox
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - as its documentation has it

from examples.adapters.inspect_sandbox import Config, DsecSandbox

KNOWN = {
    "test_read_file_not_allowed": "files are read by the platform, whom no mode stops",
    "test_write_text_file_without_permissions": "files are written by the platform, whom no mode stops",
    "test_write_binary_file_without_permissions": "files are written by the platform, whom no mode stops",
}
"""docs/adapters.md lists them."""
ADDUSER = """#!/bin/sh
while [ $# -gt 1 ]; do shift; done
[ "$1" = --help ] || echo "$1:x:1234:1234::/home/$1:/bin/sh" >> /etc/passwd
"""
"""The base image is a small Debian without the program by which the check makes its user."""


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[DsecSandbox]:
    if reason := KNOWN.get(request.node.originalname):
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    config = Config(image="base")
    await DsecSandbox.task_init("self-check", config)
    made = await DsecSandbox.sample_init("self-check", config, {})
    environment = made["default"].as_type(DsecSandbox)
    await environment.sandbox.files.write("/usr/local/sbin/adduser", ADDUSER, mode=0o755)
    yield environment
    await DsecSandbox.sample_cleanup("self-check", config, made, interrupted=False)
    await DsecSandbox.task_cleanup("self-check", config, cleanup=True)


@solver
def shell() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().write_file("answer.txt", "forty-two")
        state.output.completion = (await sandbox().exec(["cat", "answer.txt"])).stdout
        return state

    return solve


async def test_an_evaluation_runs_in_a_sandbox_of_its_own(tmp_path: Path) -> None:
    task = Task(
        [Sample("?", target="forty-two")], solver=shell(), scorer=includes(), sandbox=("dsec", "base")
    )
    (log,) = await eval_async(task, model="mockllm/model", log_dir=str(tmp_path))
    assert log.status == "success", log.error
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert "DSEC_URL" in os.environ
