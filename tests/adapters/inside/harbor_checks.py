"""Harbor's contract of an environment, and a whole trial with its oracle and verifier; in its environment.

Harbor's own tests are not in its package, and those of its providers speak to stand-ins: these hold the
contract that `BaseEnvironment` writes down, and let Harbor itself run a task from start to reward.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.paths import TrialPaths
from harbor.trial.trial import Trial

from examples.adapters.harbor_environment import DsecEnvironment

HERE = "examples.adapters.harbor_environment:DsecEnvironment"
OFFLINE = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)


def environment(tmp_path: Path, **more: Any) -> DsecEnvironment:
    folder = tmp_path / "environment"
    folder.mkdir(exist_ok=True)
    config = EnvironmentConfig(docker_image="base", cpus=1, memory_mb=256, workdir="/app")
    options = {"network_policy": OFFLINE, "task_env_config": config, **more}
    return DsecEnvironment(
        environment_dir=folder,
        environment_name="checks",
        session_id="checks__env",
        trial_paths=TrialPaths(tmp_path / "trial"),
        **options,
    )


@pytest_asyncio.fixture(loop_scope="session")
async def started(tmp_path: Path) -> AsyncIterator[DsecEnvironment]:
    made = environment(tmp_path)
    await made.start(force_build=False)
    yield made
    await made.stop(delete=True)
    await made.stop(delete=True)


async def test_commands_run_in_bash_with_directory_environment_and_user(started: DsecEnvironment) -> None:
    told = await started.exec("set -o pipefail; echo $PWD $A; echo err >&2; false | cat", env={"A": "1"})
    assert (told.return_code, told.stdout, told.stderr) == (1, "/app 1\n", "err\n")
    assert (await started.exec("pwd", cwd="/tmp")).stdout == "/tmp\n"
    assert (await started.exec("id -un", user="nobody")).stdout == "nobody\n"
    assert (await started.exec("id -u", user=65534)).stdout == "65534\n"
    with started.with_default_user("nobody"):
        assert (await started.exec("id -un")).stdout == "nobody\n"
    assert (await started.exec("true", user="no-such-user")).return_code == 127


async def test_a_command_is_ended_at_its_timeout(started: DsecEnvironment) -> None:
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        await started.exec("sleep 60", timeout_sec=1)
    assert (await started.exec("pgrep sleep || echo none")).stdout == "none\n"


async def test_resources_of_the_task_are_limits_of_the_sandbox(started: DsecEnvironment) -> None:
    applied = started.sandbox.record.applied
    assert (applied.cpu, applied.memory) == (1, 256 << 20)


async def test_files_and_directories_go_both_ways(started: DsecEnvironment, tmp_path: Path) -> None:
    (tmp_path / "up/sub").mkdir(parents=True)
    (tmp_path / "up/sub/file").write_text("one")
    await started.upload_dir(tmp_path / "up", "/up")
    await started.upload_file(tmp_path / "up/sub/file", "/elsewhere/file")
    assert await started.is_dir("/up/sub")
    assert await started.is_file("/elsewhere/file")
    (tmp_path / "down/sub").mkdir(parents=True)
    (tmp_path / "down/sub/file").write_text("old")
    (tmp_path / "down/kept").write_text("kept")
    await started.download_dir("/up", tmp_path / "down")
    assert ((tmp_path / "down/sub/file").read_text(), (tmp_path / "down/kept").read_text()) == ("one", "kept")
    await started.download_file("/elsewhere/file", tmp_path / "new/file")
    assert (tmp_path / "new/file").read_text() == "one"


async def test_harbors_own_helpers_work_on_it(started: DsecEnvironment) -> None:
    await started.ensure_dirs(["/made/a", "/made/b"])
    await started.exec("touch /made/a/file")
    await started.empty_dirs(["/made/a"])
    assert (await started.exec("ls /made /made/a | tr '\\n' ' '")).stdout.split() == [
        "/made:",
        "a",
        "b",
        "/made/a:",
    ]


def test_what_cannot_be_enforced_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no network"):
        environment(tmp_path, network_policy=NetworkPolicy())
    with pytest.raises(ValueError, match="catalog"):
        environment(tmp_path, task_env_config=EnvironmentConfig())
    with pytest.raises(Exception, match=r"(?i)gpu"):
        environment(tmp_path, task_env_config=EnvironmentConfig(docker_image="base", gpus=1))


TASK = """
version = "1.0"
[environment]
docker_image = "base"
network_mode = "no-network"
workdir = "/app"
[agent]
timeout_sec = 60
[verifier]
timeout_sec = 60
"""


JUDGE = """#!/bin/bash
grep -qx forty-two /app/answer
echo $((1 - $?)) > /logs/verifier/reward.txt
"""


async def test_harbor_runs_a_task_from_start_to_reward(tmp_path: Path) -> None:
    task = tmp_path / "task"
    for name, text in {
        "task.toml": TASK,
        "instruction.md": "Write forty-two into /app/answer.\n",
        "environment/given.txt": "given\n",
        "solution/solve.sh": "#!/bin/bash\ncat given.txt && echo forty-two > /app/answer\n",
        "tests/test.sh": JUDGE,
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
        (task / name).chmod(0o755)
    asked = {
        "task": {"path": str(task)},
        "trials_dir": str(tmp_path / "trials"),
        "agent": {"name": "oracle"},
        "environment": {"import_path": HERE},
    }
    trial = await Trial.create(TrialConfig.model_validate(asked))
    result = await trial.run()
    assert result.exception_info is None, result.exception_info
    assert result.verifier_result is not None
    assert json.loads(result.verifier_result.model_dump_json())["rewards"] == {"reward": 1.0}
