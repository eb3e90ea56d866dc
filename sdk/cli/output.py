"""What every command prints with: results to standard output, progress and errors to standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from pydantic import BaseModel
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from dsec.bus.errors import DsecError

_UNBOUNDED = 10_000
"""Columns of a file or a pipe."""


def json_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")


def progress_console() -> Console:
    """Where progress goes, so that standard output holds results alone."""
    return Console(stderr=True)


def working(text: str) -> Status:
    """Shows that `text` is under way while its block runs, on a terminal only."""
    return progress_console().status(Text(text))


def emit(value: BaseModel | dict[str, Any]) -> None:
    """One JSON object on a line of standard output."""
    body = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    sys.stdout.write(orjson.dumps(body).decode() + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """One line of standard output."""
    sys.stdout.write(text + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """A table on standard output; nothing is cut off, since what is shown gets copied and searched."""
    shown = Table(title=title, box=None, pad_edge=False)
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(str(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:
        console.width = _UNBOUNDED
    console.print(shown)


def fail(error: DsecError, *, as_json: bool) -> None:
    """Tell a typed error on standard error."""
    line = (
        orjson.dumps({"error": error.body()}).decode() if as_json else f"error: {error.code}: {error.message}"
    )
    sys.stderr.write(line + "\n")


def size(count: float) -> str:
    """`count` bytes for people: `3.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
