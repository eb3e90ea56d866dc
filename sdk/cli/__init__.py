"""The command `dsec`: one small module per command, each with `register(subparsers)`.

`register` adds its parser and sets `handler`, a function (plain or async) from the parsed arguments to the
exit code. Results go to standard output (`--json`: one JSON object a line), progress and errors to standard
error. A typed error prints `error: code: message` and exits with 2, or with 125 where the exit code is
otherwise that of a command inside (`run`, `exec`, `logs`).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Sequence
from typing import Final

from dsec import __version__
from dsec.bus.errors import DsecError
from dsec.sdk.cli.output import fail

ERROR_CODE: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT
READER_GONE: Final = 128 + signal.SIGPIPE

COMMANDS: Final = (
    "up",
    "broker",
    "sim",
    "run",
    "create",
    "exec",
    "stop",
    "start",
    "port",
    "watch",
    "shell",
    "ps",
    "fn",
    "ls",
    "stat",
    "logs",
    "cp",
    "rm",
    "pack",
    "image",
    "job",
    "plugin",
    "node",
    "principal",
    "project",
    "backup",
    "restore",
    "doctor",
    "conformance",
    "bench",
)


def parser(commands: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """The command line of `commands`. Modules are loaded here, so that only what is asked for is imported."""
    top = argparse.ArgumentParser(
        prog="dsec", description="Sandboxes by the thousand for agent-training jobs."
    )
    top.add_argument("--version", action="version", version=__version__)
    subparsers = top.add_subparsers(required=True, metavar="command")
    for name in commands:
        importlib.import_module(f"dsec.sdk.cli.{name}").register(subparsers)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    words = sys.argv[1:] if argv is None else argv
    args = parser([words[0]] if words and words[0] in COMMANDS else COMMANDS).parse_args(words)
    try:
        outcome: Awaitable[int | None] | int | None = args.handler(args)
        code = asyncio.run(_awaited(outcome)) if inspect.isawaitable(outcome) else outcome
        sys.stdout.flush()
        return code or 0
    except DsecError as error:
        fail(error, as_json=getattr(args, "json", False))
        return int(getattr(args, "error_code", ERROR_CODE))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes once more as it ends
        return READER_GONE


async def _awaited(outcome: Awaitable[int | None]) -> int | None:
    return await outcome
