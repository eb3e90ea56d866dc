"""docs/plugins.md: its snippets run, its commands exist, its table is the contract."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from dsec.bus.driver import Driver
from dsec.bus.handlers import result
from dsec.bus.messages import Place
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.wire import Wire
from dsec.sdk.cli import parser
from dsec.sdk.testing import platform

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs/plugins.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """The `dsec` command lines of the page."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [shlex.split(line.rstrip(" &"), comments=True) for line in lines if line.startswith("dsec ")]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_of_the_page_is_one(words: list[str]) -> None:
    parser().parse_args([word for word in words[1:] if word != "&"])


def test_the_table_has_the_methods_of_the_contract() -> None:
    told = set(re.findall(r"^\| `(\w+)\(", TEXT, re.MULTILINE))
    assert told == {name for name in vars(Driver) if not name.startswith("_")}


def test_the_entry_point_is_that_of_the_example() -> None:
    [shown] = blocks("toml")
    real = tomllib.loads((ROOT / "examples/third_party_backend/pyproject.toml").read_text())
    assert tomllib.loads(shown)["project"]["entry-points"] == real["project"]["entry-points"]


def test_the_suite_of_the_page_can_be_collected() -> None:
    suite, _ = blocks("python")
    names: dict[str, object] = {}
    exec(compile(ast.parse(suite), "plugins.md", "exec"), names)
    assert {"TestLifecycle", "split", "victim"} <= set(names)


async def test_the_plugin_of_the_page_takes_the_schedulers_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plugin = blocks("python")
    (tmp_path / "mine.py").write_text(plugin)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    home = tmp_path / "home"
    options = ["--without-plugin", "scheduler"]
    async with platform.running(home, only="control", options=options) as control:
        key = home / "credentials" / "scheduler.json"
        argv = ["plugin", "run", "mine:Scheduler", "--home", str(home), "--credentials", str(key), "--json"]
        part = await platform.started(argv, tmp_path / "mine.log")
        assert part.ready["kind"] == "scheduler"
        core = Credentials.load(home / "credentials" / "core.json")
        async with Wire.connect(control.url, core) as wire:
            answer = await wire.request(
                "sched.place", Place(backend="x").model_dump_json().encode(), timeout=5
            )
            assert result(answer.data)["node"] == "n-only"
        await part.stop()
        assert part.process.returncode == 0
