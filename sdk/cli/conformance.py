"""`dsec conformance --driver NAME`: what every backend must do, run against one of them.

It starts its own platform in a scratch home. Options after `--` go to pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from dsec.bus.errors import MissingTool
from dsec.sdk.cli.output import emit, json_option

_COUNTS: Final = re.compile(r"(\d+) (passed|failed|error|errors|skipped|xfailed|deselected)")


def register(subparsers: Any) -> None:
    """Add the command `conformance`."""
    parser = subparsers.add_parser("conformance", help="test a backend", description=__doc__)
    parser.add_argument("--driver", default="container", help="backend under test (default: %(default)s)")
    parser.add_argument("--own-process", action="store_true", help="with its driver in a process of its own")
    parser.add_argument("--base-image", type=Path, help="EROFS file, tar or directory of the base layer")
    json_option(parser)
    parser.add_argument("pytest", nargs="*", help="further options of pytest")
    parser.set_defaults(handler=conformance)


def conformance(args: argparse.Namespace) -> int:
    """pytest's exit code. Raises MissingTool when pytest is not installed."""
    try:
        import pytest_asyncio  # noqa: F401, PLC0415 - asked for only here: a trainer has no tests
    except ImportError as error:
        raise MissingTool("the conformance suite runs on pytest and pytest-asyncio: install both") from error
    if not args.json:
        return subprocess.run(argv(args), check=False).returncode
    done = subprocess.run(argv(args), check=False, stdout=subprocess.PIPE, text=True)
    sys.stderr.write(done.stdout)
    emit(
        {
            "driver": args.driver,
            "own_process": args.own_process,
            "exit": done.returncode,
            **counts(done.stdout),
        }
    )
    return done.returncode


def argv(args: argparse.Namespace) -> list[str]:
    """The command line of pytest."""
    options = [
        "-c",
        os.devnull,
        "--rootdir",
        ".",
        "-p",
        "no:cacheprovider",
        "-q",
    ]  # not the caller's own project
    options += ["-p", "dsec.sdk.testing.plugin", "-o", "asyncio_mode=auto"]
    options += ["-o", "asyncio_default_fixture_loop_scope=session"]
    options += ["-o", "asyncio_default_test_loop_scope=session"]
    options += ["--driver", args.driver]
    if args.own_process:
        options.append("--own-process")
    if args.base_image is not None:
        options += ["--base-image", str(args.base_image.absolute())]
    return [
        sys.executable,
        "-m",
        "pytest",
        *options,
        *args.pytest,
        "--pyargs",
        "dsec.sdk.testing.conformance",
    ]


def counts(output: str) -> dict[str, int]:
    """How many tests ended how, from pytest's last line."""
    last = output.strip().rsplit("\n", 1)[-1]
    return {name.removesuffix("s") if name == "errors" else name: int(n) for n, name in _COUNTS.findall(last)}
