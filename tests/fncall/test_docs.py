"""What docs/fncall.md shows, run as it is written."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

from dsec.plugins.fncall.devices import declared
from dsec.sdk import Client
from tests.docs.documents import blocks

pytestmark = pytest.mark.node


@pytest.mark.parametrize("snippet", blocks("docs/fncall.md", "python"))
async def test_a_snippet_runs(calls: Client, snippet: str, tmp_path: Path) -> None:
    file = tmp_path / "snippet.py"  # functions are sent by their text, which is looked for in a file
    file.write_text(snippet)
    names: dict[str, Any] = {"client": calls}
    code = compile(snippet, str(file), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(code, names)
    if inspect.isawaitable(running):
        await running
    results = [value for name, value in names.items() if name in {"result", "total", "judged"}]
    assert results
    for one in results:
        assert getattr(one, "failure", None) is None
        assert getattr(one, "verdict", "AC") == "AC"


def test_the_declaration_of_devices_is_one(tmp_path: Path) -> None:
    [declaration] = blocks("docs/fncall.md", "json")
    (tmp_path / "devices.json").write_text(declaration)
    assert [one.id for one in declared(tmp_path / "devices.json")] == ["a100-0"]
