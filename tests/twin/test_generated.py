"""The twin is what its sources are: written anew when they change, and complete."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

import dsec
from dsec.sdk.twin import generate, source
from dsec.sdk.twin.base import Twin
from dsec.sdk.twin.methods import written

RENAMED = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}


def classes() -> list[tuple[type[Any], type[Twin[Any]]]]:
    """Each class of the SDK with what is awaited, and the class of the same name beside it in the twin."""
    pairs = []
    for name, module in source.Sdk.read(generate.FOLDER).twins.items():
        kind, twin = (importlib.import_module(f"dsec.sdk.{at}{module}") for at in ("", "sync."))
        pairs.append((getattr(kind, name), getattr(twin, name)))
    return pairs


def public(kind: type[Any]) -> set[str]:
    left_out = {name for of, name in source.EXCEPT if of == kind.__name__}
    own = {name for name in vars(kind) if not name.startswith("_") or name in RENAMED}
    return {RENAMED.get(name, name) for name in own - left_out}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


def test_the_files_are_those_that_the_generator_writes() -> None:
    texts = generate.texts()
    there = {path.name: path.read_text() for path in generate.INTO.glob("*.py")}
    stale = sorted(name for name in texts | there if there.get(name) != texts.get(name))
    assert not stale, f"sdk/sync is not as the SDK is, run `make twin`: {', '.join(stale)}"


def test_every_public_method_has_a_twin_with_the_same_arguments() -> None:
    pairs = classes()
    assert {"Client", "Sandbox", "Exec", "Session", "Files"} <= {kind.__name__ for kind, _ in pairs}
    for kind, twin in pairs:
        for name in public(kind):
            found = getattr(twin, name, None)
            assert found is not None, f"{kind.__name__}.{name} has no twin: run `make twin`"
            if inspect.isfunction(getattr(kind, name, None)):
                assert parameters(found) == parameters(getattr(kind, name)), f"{kind.__name__}.{name}"
                assert not inspect.iscoroutinefunction(found)
                assert not inspect.isasyncgenfunction(found)


def test_no_class_with_what_is_awaited_is_without_a_twin() -> None:
    """Whatever the SDK offers by name, or gives from there, is reached by the generator's walk."""
    twins = {kind.__name__ for kind, _ in classes()}
    offered = {name for name in dsec.sdk.__all__ if inspect.isclass(getattr(dsec.sdk, name))}
    awaited = {
        name
        for name in offered
        for member in vars(getattr(dsec.sdk, name)).values()
        if inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
    }
    assert awaited <= twins
    assert not [name for name in dsec.sdk.__all__ if inspect.iscoroutinefunction(getattr(dsec.sdk, name))]


def test_the_twin_offers_the_names_of_the_sdk() -> None:
    assert {*dsec.sdk.__all__} - {"sync"} <= {*dsec.sync.__all__}
    assert dsec.sync.Client is importlib.import_module("dsec.sdk.sync").Client
    assert all(not inspect.iscoroutinefunction(value) for value in vars(dsec.sync).values())


def translated(tmp_path: Path, body: str) -> str:
    (tmp_path / "client.py").write_text(f"from __future__ import annotations\n{body}")
    sdk = source.Sdk.read(tmp_path)
    return "\n".join(written(sdk, sdk.modules["client"]))


PLAIN = """
class Other:
    async def work(self) -> None: ...
class Client:
    def __init__(self, name: str = "x") -> None:
        self.other = Other()
    async def told(self, *names: str, other: Other | None = None) -> list[Other]: ...
    async def maybe(self) -> Other | None: ...
    async def feed(self, pieces: AsyncIterable[bytes]) -> int: ...
"""


def test_new_parts_are_taken_in_without_handwork(tmp_path: Path) -> None:
    text = translated(tmp_path, PLAIN)
    assert "class Other(twin.Twin[AsyncOther]):" in text
    assert "return Other(self._portal, self._origin.other)" in text
    assert "def told(self, *names: str, other: Other | None=None) -> list[Other]:" in text
    assert "other=other and other._origin" in text
    assert "[Other(self._portal, one) for one in made]" in text
    assert "Other(self._portal, made) if isinstance(made, AsyncOther) else made" in text
    assert "def feed(self, pieces: Iterable[bytes]) -> int:" in text
    assert "self._origin.feed(twin.fed(pieces))" in text


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("async def x(self) -> dict[str, Client]: ...", "Client.x: no rule for dict"),
        ("async def x(self) -> asyncio.Task[int]: ...", "Client.x: asyncio.Task"),
        ("async def x(self, given: list[Client]) -> None: ...", "Client.x: no rule for an argument"),
        ("@classmethod\n    async def x(cls) -> None: ...", "Client.x: decorated with classmethod"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_name(tmp_path: Path, method: str, told: str) -> None:
    with pytest.raises(source.Untranslatable, match=told.replace(".", r"\.")):
        translated(tmp_path, f"class Client:\n    def __init__(self) -> None: ...\n    {method}\n")
