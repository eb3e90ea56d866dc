"""What SWE-ReX's own tests ask of a runtime (`tests/test_execution.py` there), of ours; in its environment.

Its tests are not in its package, and name paths of the machine that they run on: these are our own words for
the same contract, in the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SessionNotInitializedError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from examples.adapters.swerex_deployment import DsecDeployment, DsecRuntime

NOT_DONE = pytest.mark.xfail(raises=NotImplementedError, strict=True, reason="docs/adapters.md")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def deployment() -> AsyncIterator[DsecDeployment]:
    started = DsecDeployment(image="base")
    with pytest.raises(DeploymentNotStartedError):
        await started.is_alive()
    await started.start()
    yield started
    await started.stop()
    await started.stop()


@pytest.fixture
def runtime(deployment: DsecDeployment) -> DsecRuntime:
    return deployment.runtime


@pytest_asyncio.fixture(loop_scope="session")
async def shell(runtime: DsecRuntime) -> AsyncIterator[DsecRuntime]:
    await runtime.create_session(CreateBashSessionRequest())
    yield runtime
    await runtime.close_session(CloseBashSessionRequest())


async def said(shell: DsecRuntime, command: str, **more: Any) -> BashObservation:
    return await shell.run_in_session(BashAction(command=command, **{"timeout": 20.0, **more}))


async def test_it_is_alive(deployment: DsecDeployment) -> None:
    assert await deployment.is_alive()


async def test_a_file_is_written_and_read(runtime: DsecRuntime) -> None:
    await runtime.write_file(WriteFileRequest(path="/made/here/file", content="text\n"))
    assert (await runtime.read_file(ReadFileRequest(path="/made/here/file"))).content == "text\n"
    large = "x" * (1 << 20)
    await runtime.write_file(WriteFileRequest(path="/large", content=large))
    assert (await runtime.read_file(ReadFileRequest(path="/large"))).content == large


async def test_a_file_that_is_not_there_is_told(runtime: DsecRuntime) -> None:
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="/not/there"))


async def test_commands_are_executed_with_and_without_a_shell(runtime: DsecRuntime) -> None:
    assert (await runtime.execute(Command(command="echo 'a  b'", shell=True))).stdout == "a  b\n"
    assert (await runtime.execute(Command(command=["echo", "a  b"]))).stdout == "a  b\n"
    assert (await runtime.execute(Command(command="", shell=True, check=True))).exit_code == 0
    both = Command(command="echo out; echo err >&2", shell=True, merge_output_streams=True)
    assert (await runtime.execute(both)).stdout.splitlines() == ["out", "err"]
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command=["sleep", "10"], timeout=0.2))
    with pytest.raises(NonZeroExitCodeError):
        await runtime.execute(Command(command="exit 3", shell=True, check=True))


async def test_exit_codes_of_a_shell_are_told_raised_or_ignored(shell: DsecRuntime) -> None:
    assert (await said(shell, "no-such-program", check="silent")).exit_code == 127
    assert (await said(shell, "false && true", check="silent")).exit_code == 1
    assert (await said(shell, "false || true")).exit_code == 0
    assert (await said(shell, "false", check="ignore")).exit_code is None
    with pytest.raises(NonZeroExitCodeError, match="remark"):
        await said(shell, "false", error_msg="remark")


async def test_sessions_are_named_and_known(runtime: DsecRuntime) -> None:
    await runtime.create_session(CreateBashSessionRequest(session="one"))
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest(session="one"))
    await runtime.close_session(CloseBashSessionRequest(session="one"))
    with pytest.raises(SessionDoesNotExistError):
        await runtime.close_session(CloseBashSessionRequest(session="one"))
    with pytest.raises(SessionDoesNotExistError):
        await said(runtime, "true", session="one")


async def test_shells_remember_and_know_nothing_of_each_other(runtime: DsecRuntime) -> None:
    for name in ("a", "b"):
        await runtime.create_session(CreateBashSessionRequest(session=name))
    await asyncio.gather(said(runtime, "x=1; cd /tmp", session="a"), said(runtime, "y=2", session="b"))
    assert (await said(runtime, "echo $x-$y $PWD", session="a")).output == "1- /tmp\n"
    assert (await said(runtime, "echo $x-$y $PWD", session="b")).output == "-2 /\n"
    await runtime.close()


async def test_files_are_sourced_at_the_start(runtime: DsecRuntime) -> None:
    await runtime.write_file(WriteFileRequest(path="/rc", content="z=3; PS1=other; echo hi\n"))
    made = await runtime.create_session(CreateBashSessionRequest(session="s", startup_source=["/rc"]))
    assert made.output == "hi\n"
    assert (await said(runtime, "echo $z", session="s")).output == "3\n"
    await runtime.close_session(CloseBashSessionRequest(session="s"))


async def test_a_timeout_is_raised_and_the_shell_lives_on(shell: DsecRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await said(shell, "sleep 10", timeout=0.2)
    await shell.run_in_session(BashInterruptAction())
    assert (await said(shell, "echo alive")).output == "alive\n"


async def test_a_pager_is_ended_by_its_timeout(shell: DsecRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await said(shell, "tail -f /etc/passwd | cat", timeout=0.2)
    assert (await said(shell, "echo alive")).output == "alive\n"


async def test_a_command_that_runs_is_interrupted(shell: DsecRuntime) -> None:
    running = asyncio.create_task(said(shell, "sleep 20", check="silent"))
    await asyncio.sleep(1)
    await shell.run_in_session(BashInterruptAction())
    assert (await asyncio.wait_for(running, 10)).exit_code == 130


@pytest.mark.parametrize("command", ["", "\n", "\n\n \n", "# only a remark"])
async def test_nothing_is_a_command(shell: DsecRuntime, command: str) -> None:
    assert (await said(shell, command)).output == ""


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("\n echo 'one'\n\n", ["one"]),
        ("\n\n echo 'one' \n  \n echo 'two' \n\n", ["one", "two"]),
        ("echo 'one'; echo 'two'", ["one", "two"]),
        ("cat <<EOF\none\ntwo\nEOF", ["one", "two"]),
        ("for i in {1..3};\n do echo again;\n done", ["again"] * 3),
        ("echo 'one\ntwo'", ["one", "two"]),
        ("echo one;A=();echo two", ["one", "two"]),
        ("[[ $none == $none ]]", []),
        ("(sleep 30) &", []),
        ("bash -n <<'EOF'\necho text\nEOF", []),
    ],
)
async def test_shell_code_of_any_form_runs(shell: DsecRuntime, command: str, lines: list[str]) -> None:
    assert (await said(shell, command)).output.splitlines() == lines


async def test_code_that_is_no_bash_is_refused_with_what_bash_says(shell: DsecRuntime) -> None:
    with pytest.raises(BashIncorrectSyntaxError) as caught:
        await said(shell, "(a")
    assert "syntax error" in caught.value.extra_info["bash_stderr"]


async def test_a_shell_that_has_exited_is_told(runtime: DsecRuntime) -> None:
    await runtime.create_session(CreateBashSessionRequest(session="e"))
    assert (await said(runtime, "exit 4", session="e", check="silent")).exit_code == 4
    with pytest.raises(SessionNotInitializedError):
        await said(runtime, "true", session="e")
    await runtime.close_session(CloseBashSessionRequest(session="e"))


async def test_files_and_directories_are_uploaded(runtime: DsecRuntime, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/one").write_text("1")
    await runtime.upload(UploadRequest(source_path=str(tmp_path / "d/one"), target_path="/up/file"))
    await runtime.upload(UploadRequest(source_path=str(tmp_path / "d"), target_path="/up/d"))
    for path in ("/up/file", "/up/d/one"):
        assert (await runtime.read_file(ReadFileRequest(path=path))).content == "1"


@NOT_DONE
async def test_a_program_is_talked_to(shell: DsecRuntime) -> None:
    await said(shell, "python3", is_interactive_command=True, expect=[">>> "])
