"""How one class of the SDK becomes its twin: the text of each method, and the imports that it needs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from dsec.sdk.twin.source import (
    EXCEPT,
    ITERATORS,
    ROOT,
    SYNC,
    Function,
    Module,
    Sdk,
    Untranslatable,
    attributes,
    decorators,
    functions,
    names_in,
    returns,
)

LEFT_OUT: Final = {"__init__", "__repr__", "__aenter__", "__aexit__"}
"""What the base classes have."""
RENAMED: Final = {"__aiter__": "__iter__", "__anext__": "__next__"}
NEXT: Final = """try:
            {}
        except StopAsyncIteration:
            raise StopIteration from None"""
WORDS: Final = (
    (r"\basync (with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b[Aa]n asynchronous ", "a "),
    (r"\basynchronous(ly)? ?", ""),
    (r"\bdsec\.Client\b", "dsec.sync.Client"),
)
"""Of documentation: what it says instead."""


class Writer:
    """Writes the twins of one module. `imports` are the statements that its text needs."""

    def __init__(self, sdk: Sdk, module: Module) -> None:
        self._sdk = sdk
        self._module = module
        self._where = module.name
        self.imports: set[str] = set()
        self.aliases: dict[str, str] = {}

    def text(self, node: ast.ClassDef) -> str:
        """The twin class. Raises Untranslatable."""
        entered = any(one.name == "__aenter__" for one in functions(node))
        base = "Root" if node.name == ROOT else "Managed" if entered else "Twin"
        self._need_origin(node.name)
        parts = [f"class {node.name}(twin.{base}[Async{node.name}]):", self._doc(node, "    ")]
        if node.name == ROOT:
            parts.append(self._init(node))
        parts += [self._attribute(*one) for one in attributes(node).items()]
        parts += [self._method(node, one) for one in functions(node) if self._wanted(node, one)]
        return "\n".join(parts)

    @staticmethod
    def _wanted(node: ast.ClassDef, method: Function) -> bool:
        inherited = method.name in LEFT_OUT or "setter" in decorators(method)
        return not inherited and (node.name, method.name) not in EXCEPT

    def _need_origin(self, name: str) -> None:
        self.imports.add(f"from dsec.sdk.{self._sdk.twins[name]} import {name} as Async{name}")

    # -- members

    def _init(self, node: ast.ClassDef) -> str:
        init = next(one for one in functions(node) if one.name == "__init__")
        self.imports.add("from dsec.sdk.twin.portal import Portal")
        head = f"    def __init__({self._signature(init)}) -> None:"
        return f"{head}\n        super().__init__(Portal(), Async{node.name}({self._given(init)}))\n"

    def _attribute(self, name: str, annotation: ast.expr) -> str:
        self._where = f"{self._module.name}: {name}"
        value = self._made(annotation, f"self._origin.{name}")
        return f"    @property\n    def {name}(self) -> {self._type(annotation)}:\n        {value}\n"

    def _method(self, node: ast.ClassDef, method: Function) -> str:
        self._where = f"{node.name}.{method.name}"
        marks = decorators(method) - {"override"}
        if marks - {"property", "overload", "asynccontextmanager"}:
            raise Untranslatable(f"{self._where}: decorated with {', '.join(sorted(marks))}")
        told = self._returned(method, marks)
        head = f"    def {RENAMED.get(method.name, method.name)}({self._signature(method)}) -> {told}:"
        head = "".join(f"    @{mark}\n" for mark in sorted(marks & {"property", "overload"})) + head
        if "overload" in marks:
            self.imports.add("from typing import overload")
            return f"{head} ..."
        parts = [head, self._doc(method, " " * 8), f"        {self._body(method, marks)}\n"]
        return "\n".join(part for part in parts if part)

    def _returned(self, method: Function, marks: set[str]) -> str:
        if not self._is_block(method, marks):
            return self._type(returns(method))
        self.imports.add("from contextlib import AbstractContextManager")
        return f"AbstractContextManager[{self._type(self._item(method))}]"

    @staticmethod
    def _is_block(method: Function, marks: set[str]) -> bool:
        return "asynccontextmanager" in marks or "AbstractAsyncContextManager" in names_in(returns(method))

    def _body(self, method: Function, marks: set[str]) -> str:
        annotation = returns(method)
        call = f"self._origin.{method.name}({self._given(method)})"
        if "property" in marks:
            return self._made(annotation, f"self._origin.{method.name}")
        if self._is_block(method, marks):
            return f"return twin.block(self._portal, {call}, {self._maker(self._item(method))})"
        if names_in(annotation) & ITERATORS.keys():
            return f"return twin.each(self._portal, {call}, {self._maker(self._item(method))})"
        if method.name == "__aiter__":
            return "return self"
        awaited = isinstance(method, ast.AsyncFunctionDef)
        made = self._made(annotation, f"self._portal.call({call})" if awaited else call)
        return NEXT.format(made.replace("\n", "\n    ")) if method.name == "__anext__" else made

    def _item(self, method: Function) -> ast.expr:
        """The type of what an iterator or a context manager gives."""
        annotation = returns(method)
        if not isinstance(annotation, ast.Subscript):
            raise Untranslatable(f"{self._where}: what does it give?")
        inner = annotation.slice
        return inner.elts[0] if isinstance(inner, ast.Tuple) else inner

    # -- values

    def _made(self, annotation: ast.expr, value: str) -> str:
        """Statements that return `value` with twins in the place of objects."""
        if ast.unparse(annotation) == "Self":
            return f"{value}\n        return self"
        if ast.unparse(annotation) == "None":
            return value
        if not self._sdk.twins_in(annotation):
            return f"return {value}"
        if isinstance(annotation, ast.Name):
            return f"return {self._twin(annotation, value)}"
        if isinstance(
            annotation, ast.BinOp
        ):  # perhaps overloaded: which is meant, the caller's checker knows
            self.imports.add("from typing import Any")
            value = value.replace("self._origin", "origin", 1)
            lines = (
                "origin: Any = self._origin",
                f"made = {value}",
                f"return {self._twin(annotation, 'made')}",
            )
            return "\n        ".join(lines)
        return f"made = {value}\n        return {self._twin(annotation, 'made')}"

    def _maker(self, annotation: ast.expr) -> str:
        if not self._sdk.twins_in(annotation):
            return "twin.same"
        return f"lambda made: {self._twin(annotation, 'made')}"

    def _twin(self, annotation: ast.expr, value: str) -> str:
        """An expression of the translated type."""
        name = ast.unparse(annotation).rsplit(".", 1)[-1]
        if name in self._sdk.twins:
            self._type(annotation)
            return f"{name}(self._portal, {value})"
        if not self._sdk.twins_in(annotation):
            return value
        if isinstance(annotation, ast.BinOp):
            return self._one_of(annotation, value)
        container = ast.unparse(annotation.value) if isinstance(annotation, ast.Subscript) else ""
        if container == "list" and isinstance(annotation, ast.Subscript):
            return f"[{self._twin(annotation.slice, 'one')} for one in {value}]"
        raise Untranslatable(f"{self._where}: no rule for {ast.unparse(annotation)}")

    def _one_of(self, union: ast.BinOp, value: str) -> str:
        """For `A | B`, of which one at least is a twin."""
        left, right = union.left, union.right
        if not self._sdk.twins_in(left):
            left, right = right, left
        name = ast.unparse(left).rsplit(".", 1)[-1]
        if name not in self._sdk.twins:
            raise Untranslatable(f"{self._where}: no rule for {ast.unparse(union)}")
        self._need_origin(name)
        return (
            f"{self._twin(left, value)} if isinstance({value}, Async{name}) else {self._twin(right, value)}"
        )

    # -- signatures

    def _signature(self, method: Function) -> str:
        args = method.args
        copied = ast.arguments(
            posonlyargs=[self._arg(one) for one in args.posonlyargs],
            args=[self._arg(one) for one in args.args],
            vararg=args.vararg and self._arg(args.vararg),
            kwonlyargs=[self._arg(one) for one in args.kwonlyargs],
            kw_defaults=args.kw_defaults,
            kwarg=args.kwarg and self._arg(args.kwarg),
            defaults=args.defaults,
        )
        for default in (*args.defaults, *args.kw_defaults):
            if default is not None:
                self._import_names(default)
        return ast.unparse(copied)

    def _arg(self, arg: ast.arg) -> ast.arg:
        return ast.arg(arg.arg, arg.annotation and self._translated(arg.annotation))

    def _given(self, method: Function) -> str:
        """The arguments as they are passed on."""
        args = method.args
        plain = [self._passed(one) for one in (*args.posonlyargs, *args.args)][1:]
        plain += [f"*{args.vararg.arg}"] if args.vararg else []
        plain += [f"{one.arg}={self._passed(one)}" for one in args.kwonlyargs]
        plain += [f"**{args.kwarg.arg}"] if args.kwarg else []
        return ", ".join(plain)

    def _passed(self, arg: ast.arg) -> str:
        if arg.annotation is None:
            return arg.arg
        if self._sdk.twins_in(arg.annotation):
            return self._bare(arg.arg, arg.annotation)
        return f"twin.fed({arg.arg})" if self._is_fed(arg.annotation) else arg.arg

    def _bare(self, name: str, annotation: ast.expr) -> str:
        if isinstance(annotation, ast.Name):
            return f"{name}._origin"
        if isinstance(annotation, ast.BinOp) and ast.unparse(annotation.right) == "None":
            return f"{name} and {name}._origin"
        raise Untranslatable(f"{self._where}: no rule for an argument {ast.unparse(annotation)}")

    def _is_fed(self, annotation: ast.expr) -> bool:
        """Whether it may be an asynchronous iterable, by a name of the module too."""
        aliased = [self._module.aliases[one] for one in names_in(annotation) & self._module.aliases.keys()]
        return any("AsyncIterable" in names_in(one) for one in (annotation, *aliased))

    def _type(self, annotation: ast.expr) -> str:
        return ast.unparse(self._translated(annotation))

    def _translated(self, annotation: ast.expr) -> ast.expr:
        """The annotation in synchronous types, with what it needs imported. Raises Untranslatable."""
        if "asyncio" in names_in(annotation):
            raise Untranslatable(f"{self._where}: {ast.unparse(annotation)} belongs to a loop")
        done = _Translation(self._sdk).visit(ast.parse(ast.unparse(annotation), mode="eval").body)
        assert isinstance(done, ast.expr)
        self._import_names(done)
        return done

    def _import_names(self, node: ast.expr) -> None:
        for name in sorted({one.id for one in ast.walk(node) if isinstance(one, ast.Name)}):
            self._import(name)

    def _import(self, name: str) -> None:
        if name in SYNC.values():
            self.imports.add(f"from collections.abc import {name}")
        elif name in self._sdk.twins:
            if self._sdk.twins[name] != self._module.name:
                self.imports.add(f"from dsec.sdk.sync.{self._sdk.twins[name]} import {name}")
        elif name in self._module.aliases and self._is_fed(self._module.aliases[name]):
            if name not in self.aliases:
                self.aliases[name] = self._type(self._module.aliases[name])
        elif (statement := self._module.origin(name)) is not None:
            self.imports.add(statement)

    # -- documentation

    @staticmethod
    def _doc(node: ast.ClassDef | Function, indent: str) -> str:
        text = ast.get_docstring(node, clean=False)
        if text is None:
            return ""
        for pattern, replacement in WORDS:
            text = re.sub(pattern, replacement, text)
        escaped = text.replace("\\", "\\\\").replace('"""', '\\"""')
        return f'{indent}"""{escaped}"""'


class _Translation(ast.NodeTransformer):
    """Asynchronous types become synchronous ones, and twins are named without their module."""

    def __init__(self, sdk: Sdk) -> None:
        self._sdk = sdk

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(SYNC.get(node.id, node.id))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Name(node.attr) if node.attr in self._sdk.twins else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        inner = self.visit(node.slice)
        if ast.unparse(node.value) == "AsyncGenerator" and isinstance(inner, ast.Tuple):
            inner = ast.Tuple([*inner.elts, ast.Constant(None)])
        return ast.Subscript(self.visit(node.value), inner)


def written(sdk: Sdk, module: Module) -> Iterator[str]:
    """Parts of the twin module's text: imports, names of types, classes."""
    writer = Writer(sdk, module)
    classes = [
        writer.text(node) for name, node in module.classes.items() if sdk.twins.get(name) == module.name
    ]
    yield "\n".join(sorted(writer.imports))
    yield "\n".join(f"{name} = {value}" for name, value in writer.aliases.items())
    yield from classes
