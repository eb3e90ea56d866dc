"""Who may import whom, and how large a file may be."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for top in ("bus", "plugins", "sdk") for path in (ROOT / top).rglob("*.py"))


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_its_folder_may(path: Path) -> None:
    top, *rest = path.relative_to(ROOT).parts
    names = imports(path)
    if top == "bus":
        assert not [name for name in names if name.startswith(("dsec.plugins", "dsec.sdk"))]
    if top == "plugins":
        assert not [name for name in names if name.startswith("dsec.sdk")]
        others = {name.split(".")[2] for name in names if name.startswith("dsec.plugins.")}
        assert others <= {rest[0]}
    if top == "sdk":
        assert not [name for name in names if name.startswith("dsec.plugins")]


def texts(path: Path) -> list[str]:
    """The strings of a file that it works with: no documentation."""
    tree = ast.parse(path.read_text())
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in told)
    return [node.value for node in nodes if isinstance(node.value, str)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_subjects_of_jetstream_are_formatted_in_one_place(path: Path) -> None:
    if path != ROOT / "bus" / "subjects.py":
        assert [text for text in texts(path) if text.startswith(("$KV.", "$JS.API"))] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_cancellation_is_lost_in_wait_for(path: Path) -> None:
    """Before Python 3.12 it swallows one that comes with the result, and who cancelled waits for ever."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
    assert path.is_relative_to(ROOT / "sdk/testing") or "wait_for" not in {call.attr for call in calls}


def test_no_file_is_over_500_lines() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    code = [ROOT / name for name in listed.split() if name.endswith((".py", ".c", ".h"))]
    assert {
        path.name: n for path in code if path.exists() and (n := len(path.read_text().split("\n"))) > 501
    } == {}
