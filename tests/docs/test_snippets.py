"""What the README and the tour of the SDK show, run as it is written, on the real platform."""

from __future__ import annotations

import ast
import asyncio
import inspect
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import dsec
from dsec.sdk import Client
from dsec.sdk.testing import platform
from tests.docs.documents import WITHIN, blocks, commands, finished, shell

pytestmark = pytest.mark.node
SET_UP = "make "  # what these lines do was done before any test could run


def is_program(snippet: str) -> bool:
    return "asyncio.run(" in snippet or "dsec.sync" in snippet


TOUR = [one for one in blocks("docs/sdk.md", "python") if not is_program(one)]
PROGRAMS = [one for name in ("README.md", "docs/sdk.md") for one in blocks(name, "python") if is_program(one)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def debian(home: Path, base_file: Path) -> None:
    """The image under the name that the documents use."""
    await platform.command("image", "import", "--home", str(home), "debian", str(base_file))


@pytest_asyncio.fixture(loop_scope="session")
async def starting(tmp_path: Path) -> AsyncIterator[list[Process]]:
    """Processes that a test starts and that serve until its end."""
    started: list[Process] = []
    yield started
    for process in started:
        process.terminate()
        await asyncio.wait_for(process.wait(), WITHIN)


async def test_the_commands_of_the_readme_work_in_their_order(
    tmp_path: Path, starting: list[Process]
) -> None:
    lines, printed = [one for one in commands("README.md") if not one.startswith(SET_UP)], ""
    assert any(line.startswith("dsec up") for line in lines)
    for line in lines:
        process = await shell(f"exec {line}" if line == "dsec up" else line, tmp_path)
        if line == "dsec up":
            starting.append(process)
            await asyncio.wait_for(_until_up(process), WITHIN)
        else:
            printed = await finished(process)
    assert printed == "hello from inside\n"


async def _until_up(process: Process) -> None:
    assert process.stdout is not None
    while not (line := await process.stdout.readline()).startswith(b"dsec is up"):
        assert line, "dsec up ended"


@pytest.mark.parametrize("program", PROGRAMS, ids=["README", "tour", "sync"])
async def test_a_program_of_the_documents_runs(
    program: str, live: platform.Part, debian: None, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(program)
    assert await finished(await shell(f"python -W error {tmp_path}/program.py", home))


async def test_the_tour_of_the_sdk_runs_from_top_to_bottom(client: Client, debian: None) -> None:
    assert len(TOUR) >= 8
    async with client.sandbox(image="debian") as sandbox:
        names: dict[str, Any] = {"client": client, "sandbox": sandbox, "dsec": dsec, "tempfile": tempfile}
        for snippet in TOUR:
            code = compile(snippet, "docs/sdk.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            running = eval(code, names)
            if inspect.isawaitable(running):
                async with asyncio.timeout(WITHIN):  # the traceback tells the snippet and its line
                    await running
