"""`dsec bench NAME`: measure this machine. Starts what it needs and cleans up.

With `--json` the last line of standard output is one JSON object with the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import pkgutil
from types import ModuleType
from typing import Any

from dsec.bus.errors import MissingTool, SpecError
from dsec.sdk.cli.loop import collect_rarely, loop_factory
from dsec.sdk.cli.output import emit, json_option, progress_console, say, table

_HELPERS = {"measure", "counting", "parts"}


def register(subparsers: Any) -> None:
    """Add the command `bench`."""
    parser = subparsers.add_parser("bench", help="measure this machine", description=__doc__)
    parser.add_argument("name", nargs="?", help="benchmark; none: list them")
    json_option(parser)
    parser.set_defaults(handler=bench)


def bench(args: argparse.Namespace) -> int:
    """Run one, or tell which there are. One with `UVLOOP` runs as a service does."""
    if args.name is None:
        _list(as_json=args.json)
        return 0
    module = _module(args.name)
    factory = None
    if getattr(module, "UVLOOP", False):
        collect_rarely()
        factory = loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_bench(module, args))


async def _bench(module: ModuleType, args: argparse.Namespace) -> int:
    console = progress_console()
    with console.status(f"benchmark {args.name}") as status:

        def tell(text: str) -> None:
            status.update(f"{args.name}: {text}")
            if not console.is_terminal:
                console.print(f"{args.name}: {text}", highlight=False)

        figures: dict[str, Any] = await module.run(tell)
    if args.json:
        emit(figures)
    else:
        table(("figure", "value"), figures.items(), title=f"dsec bench {args.name}")
    return 0


def names() -> list[str]:
    """Every benchmark. Raises MissingTool when they are not installed."""
    spec = importlib.util.find_spec("dsec.benchmarks")
    if spec is None or spec.submodule_search_locations is None:
        raise MissingTool("the benchmarks are not installed: install opendsec[node]")
    found = pkgutil.iter_modules(spec.submodule_search_locations)
    return sorted(one.name for one in found if one.name not in _HELPERS)


def _module(name: str) -> ModuleType:
    known = names()
    if name not in known:
        raise SpecError(f"no benchmark {name!r}; there are: {', '.join(known)}", field="name")
    return importlib.import_module(f"dsec.benchmarks.{name}")


def _list(*, as_json: bool) -> None:
    if as_json:
        emit({"benchmarks": names()})
    else:
        for name in names():
            say(name)
