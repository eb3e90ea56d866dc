"""Reads the project's documents, and runs the shell lines that they show."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
WITHIN = 60.0
"""Seconds that one line may take."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: str, language: str) -> list[str]:
    """Fenced blocks of one language, in order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [body for found, body in _BLOCK.findall(text) if found == language]


def commands(document: str) -> list[str]:
    """The lines of its `console` blocks that are typed, without the remarks behind them."""
    lines = [line for body in blocks(document, "console") for line in body.splitlines()]
    return [line[2:].partition(" # ")[0].strip() for line in lines if line.startswith("# ")]


async def shell(line: str, home: Path) -> Process:
    """`line` in a shell whose `dsec` and `python` are this environment's; both outputs in one pipe."""
    programs = str(Path(sys.executable).parent)
    return await asyncio.create_subprocess_exec(
        "bash",
        "-ec",
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
