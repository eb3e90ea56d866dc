"""What the README and the tour of the SDK show, run as it is written, on the real platform."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import dsec
from dsec.sdk import Client
from dsec.sdk.testing import platform

pytestmark = pytest.mark.node
ROOT = Path(__file__).parent.parent.parent
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SET_UP = "make "  # what these lines do was done before any test could run
WITHIN = 60.0


def blocks(document: str, language: str) -> list[str]:
    """Fenced blocks of one language, in order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [body for found, body in _BLOCK.findall(text) if found == language]


def commands(document: str) -> list[str]:
    """The shell lines of its `console` blocks, set-up left out."""
    lines = [line for body in blocks(document, "console") for line in body.splitlines()]
    typed = [line[2:].partition(" # ")[0].strip() for line in lines if line.startswith("# ")]
    return [line for line in typed if not line.startswith(SET_UP)]


def is_program(snippet: str) -> bool:
    return "asyncio.run(" in snippet


TOUR = [one for one in blocks("docs/sdk.md", "python") if not is_program(one)]
PROGRAMS = [one for name in ("README.md", "docs/sdk.md") for one in blocks(name, "python") if is_program(one)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def debian(home: Path, base_file: Path) -> None:
    """The image under the name that the documents use."""
    await platform.command("image", "import", "--home", str(home), "debian", str(base_file))


async def shell(line: str, home: Path) -> Process:
    """`line` in a shell whose `dsec` and `python` are this environment's; both outputs in one pipe."""
    programs = str(Path(sys.executable).parent)
    return await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        line,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        cwd=ROOT,
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "DSEC_HOME": str(home)},
    )


async def finished(process: Process) -> str:
    """What it printed; it must have ended well."""
    out, _ = await asyncio.wait_for(process.communicate(), WITHIN)
    assert process.returncode == 0, out.decode()
    return out.decode()


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
    lines, printed = commands("README.md"), ""
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


@pytest.mark.parametrize("program", PROGRAMS, ids=["README", "tour"])
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
                await running
