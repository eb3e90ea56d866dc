"""The sources of the SDK as the generator reads them: modules, what their names mean, who needs a twin."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

Function = ast.FunctionDef | ast.AsyncFunctionDef

ROOT: Final = "Client"
EXCEPT: Final = {
    ("Client", "over"): "a bus belongs to the loop of whoever opened it",
    ("Sandbox", "connect"): "asyncio's streams; `Sandbox.port` is for plain sockets",
}
"""What has no twin, and why."""
ITERATORS: Final = {"AsyncIterator": "Iterator", "AsyncGenerator": "Generator"}
SYNC: Final = {**ITERATORS, "AsyncIterable": "Iterable"}
"""Asynchronous types, and what stands for them."""


class Untranslatable(Exception):
    """A part of the SDK that the generator does not know how to translate."""


@dataclass(frozen=True)
class Module:
    """One source file. `imports`: what a name was imported by; `aliases`: values of its top-level names."""

    name: str
    imports: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, ast.expr] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Module:
        module = cls(path.stem)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            module._take(node)
        return module

    def _take(self, node: ast.stmt) -> None:
        if isinstance(node, ast.ImportFrom):
            for one in node.names:
                self.imports[one.asname or one.name] = f"from {node.module} import {ast.unparse(one)}"
        elif isinstance(node, ast.Import):
            for one in node.names:
                self.imports[one.asname or one.name.split(".")[0]] = f"import {ast.unparse(one)}"
        elif isinstance(node, ast.ClassDef):
            self.classes[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.aliases[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            self.aliases[node.target.id] = node.value

    def origin(self, name: str) -> str | None:
        """The statement that imports a name of this module elsewhere; None for a builtin."""
        if name in self.imports:
            return self.imports[name]
        here = name in self.classes or name in self.aliases
        return f"from dsec.sdk.{self.name} import {name}" if here else None


@dataclass(frozen=True)
class Sdk:
    """All modules, and the module of each class that gets a twin."""

    modules: dict[str, Module]
    twins: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> Sdk:
        modules = {path.stem: Module.read(path) for path in sorted(folder.glob("[!_]*.py"))}
        homes = {name: module.name for module in modules.values() for name in module.classes}
        sdk = cls(modules, {})
        waiting = [ROOT]
        while waiting:
            name = waiting.pop()
            if name in homes and name not in sdk.twins and is_async(modules[homes[name]].classes[name]):
                sdk.twins[name] = homes[name]
                waiting += sorted(_told(modules[homes[name]].classes[name]))
        return sdk

    def twins_in(self, annotation: ast.expr) -> set[str]:
        """Names in it that are twins'."""
        return names_in(annotation) & self.twins.keys()


def is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def names_in(node: ast.AST) -> set[str]:
    """Names in it, the last parts of dotted ones too."""
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def functions(node: ast.ClassDef) -> Iterator[Function]:
    """Public methods, overloads and properties."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(one.name):
            yield one


def decorators(function: Function) -> set[str]:
    """Last parts of their names: `asynccontextmanager`, `setter`."""
    return {ast.unparse(one).rsplit(".", 1)[-1] for one in function.decorator_list}


def returns(function: Function) -> ast.expr:
    return function.returns or ast.Constant(None)


def is_async(node: ast.ClassDef) -> bool:
    """Whether any public method is awaited, or iterated over asynchronously."""
    return any(
        isinstance(one, ast.AsyncFunctionDef) or names_in(returns(one)) & ITERATORS.keys()
        for one in functions(node)
    )


def attributes(node: ast.ClassDef) -> dict[str, ast.expr]:
    """Public data of its instances, with their types. Raises Untranslatable when one is not told."""
    found = {
        one.target.id: one.annotation
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and is_public(one.target.id)
    }
    init = next((one for one in functions(node) if one.name == "__init__"), None)
    for one in init.body if init else ():
        target = one.targets[0] if isinstance(one, ast.Assign) else getattr(one, "target", None)
        own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
        if init and own and isinstance(target, ast.Attribute) and is_public(target.attr):
            found[target.attr] = _type(one, init, f"{node.name}.{target.attr}")
    return found


def _type(statement: ast.stmt, init: Function, what: str) -> ast.expr:
    if isinstance(statement, ast.AnnAssign):
        return statement.annotation
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func
    if isinstance(value, ast.Name):
        for one in (*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs):
            if one.arg == value.id and one.annotation is not None:
                return one.annotation
    raise Untranslatable(f"{what}: annotate it in __init__, its type is not plain")


def _told(node: ast.ClassDef) -> set[str]:
    """Names that its public side leads to."""
    known = [one for one in functions(node) if (node.name, one.name) not in EXCEPT]
    return {name for one in known for name in names_in(returns(one))} | {
        name for annotation in attributes(node).values() for name in names_in(annotation)
    }
