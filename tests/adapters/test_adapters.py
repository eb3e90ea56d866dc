"""The adapters under the real packages, each in an environment of its own, on a live node.

What runs inside is in `inside/`; it finds the platform by DSEC_URL and DSEC_CREDENTIALS, as a user would.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import xml.etree.ElementTree as ET
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dsec.bus.errors import GoneError
from dsec.sdk import Client, State
from dsec.sdk.testing.platform import Part
from tests.adapters.venvs import ROOT, environment, interpreter

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(900)]
TEXT = (ROOT / "docs/adapters.md").read_text()
WITHIN = 400.0


@pytest_asyncio.fixture(loop_scope="session")
async def nothing_left(client: Client) -> AsyncIterator[None]:
    yield
    left = [record.sandbox async for record in client.list() if record.state is not State.DESTROYED]
    for name in left:
        with contextlib.suppress(GoneError):
            await (await client.attach(name)).destroy()
    assert left == []


async def run(name: str, minor: int, live: Part, tmp_path: Path) -> dict[str, str]:
    """How each test of `inside/NAME_checks.py` ended."""
    python = await asyncio.to_thread(interpreter, minor)
    if python is None:
        pytest.skip(f"{name} needs Python 3.{minor} or newer, which is not on this machine")
    python = str(await asyncio.to_thread(environment, name, python))
    told = tmp_path / "told.xml"
    argv = [
        "-m",
        "pytest",
        "-q",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(ROOT),
    ]
    argv += ["-o", "asyncio_mode=auto", "--basetemp", str(tmp_path / "inside"), f"--junitxml={told}"]
    argv += [
        "-o",
        "asyncio_default_fixture_loop_scope=session",
        "-o",
        "asyncio_default_test_loop_scope=session",
    ]
    found = {
        "DSEC_URL": live.url,
        "DSEC_CREDENTIALS": str(live.credentials),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(tmp_path),
    }
    checks = str(ROOT / f"tests/adapters/inside/{name}_checks.py")
    process = await asyncio.create_subprocess_exec(
        python, *argv, checks, stdout=PIPE, stderr=STDOUT, env={**os.environ, **found}, cwd=tmp_path
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), WITHIN)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode()[-20_000:]
    return {str(case.get("name")): ending(case) for case in ET.parse(told).iter("testcase")}


def ending(case: ET.Element) -> str:
    skipped = case.find("skipped")
    return "passed" if skipped is None else str(skipped.get("message"))


def listed(package: str) -> set[str]:
    """Tests that docs/adapters.md says do not pass."""
    (section,) = re.findall(rf"^## {package}$(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


async def test_the_self_check_of_inspect_ai_passes(
    live: Part, client: Client, nothing_left: None, tmp_path: Path
) -> None:
    ends = await run("inspect", 11, live, tmp_path)
    assert len(ends) >= 40
    assert {name for name, end in ends.items() if end != "passed"} == listed("Inspect AI")


async def test_what_swe_rex_asks_of_a_runtime_holds(
    live: Part, client: Client, nothing_left: None, tmp_path: Path
) -> None:
    ends = await run("swerex", 11, live, tmp_path)
    assert len(ends) >= 25
    assert {name for name, end in ends.items() if end != "passed"} == listed("SWE-ReX")


async def test_harbor_runs_its_tasks_on_it(
    live: Part, client: Client, nothing_left: None, tmp_path: Path
) -> None:
    ends = await run("harbor", 12, live, tmp_path)
    assert len(ends) >= 7
    assert {name for name, end in ends.items() if end != "passed"} == listed("Harbor")
