"""Building chronus: once per source, whole, or a typed error."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from dsec.bus.chronus import build
from dsec.bus.errors import MissingTool

pytestmark = pytest.mark.node


def test_the_binary_is_static_and_built_once() -> None:
    path = build.binary()
    linked = subprocess.run(["ldd", path], capture_output=True, check=False)
    assert b"not a dynamic executable" in linked.stderr
    assert path == build.binary()


async def test_builds_at_once_leave_one_whole_binary(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "dsec.bus.chronus.build")
    environment = {"DSEC_CACHE": str(tmp_path / "new"), "PATH": "/usr/bin:/bin"}
    builds = [
        await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
        for _ in range(2)
    ]
    printed = {(await one.communicate())[0] for one in builds}
    assert len(printed) == 1
    [made] = (tmp_path / "new").iterdir()
    assert printed == {f"{made}\n".encode()}


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEC_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="musl-tools"):
        build.binary()
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_does_not_compile_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.c").write_text("int main(void) { return }")
    monkeypatch.setattr(build, "SOURCE", tmp_path)
    monkeypatch.setenv("DSEC_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MissingTool, match="error"):
        build.binary()
    assert list((tmp_path / "cache").iterdir()) == []
