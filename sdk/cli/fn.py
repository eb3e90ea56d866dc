"""`dsec fn`: stateless calls.

dsec fn call FILE --entry f --args '[1, 2]'       a function: prints what it returns as JSON
dsec fn call FILE [-- ARGUMENTS]                  a program, by FILE's suffix: .py .sh .c .cpp
dsec fn judge FILE --cases DIR                    runs it for each N.in in DIR, compares with N.out
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import orjson

from dsec.bus.errors import SpecError
from dsec.sdk.cli import options
from dsec.sdk.cli.following import PLATFORM_FAILED
from dsec.sdk.cli.output import emit, say, table
from dsec.sdk.fn import FnResult, Judged

LANGUAGES: Final = {".py": "python", ".sh": "sh", ".bash": "bash", ".c": "c", ".cpp": "c++", ".cc": "c++"}
FAILED: Final = 1


def register(subparsers: Any) -> None:
    """Add the commands `fn call` and `fn judge`."""
    parser = subparsers.add_parser(
        "fn",
        help="stateless calls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    call = _command(commands, "call", "run a function or a program", call_file)
    call.add_argument("--entry", help="Python: the function that is called")
    call.add_argument("--args", default="[]", help="its arguments, a JSON array")
    call.add_argument("--stdin", action="store_true", help="pass standard input on")
    call.add_argument("argv", nargs="*", metavar="ARGUMENT", help="of a program, after --")
    judge = _command(commands, "judge", "run a program on many inputs and check what it prints", judge_file)
    judge.add_argument("--cases", type=Path, required=True, metavar="DIR", help="with N.in and N.out")
    judge.add_argument("--checker", default="exact", choices=("exact", "tokens", "floats"))


def _command(commands: Any, name: str, about: str, handler: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    options.client_options(parser)
    parser.add_argument("file", type=Path, help="source")
    parser.add_argument("--language", help="by default from the suffix of the file")
    parser.add_argument("--image", help="base layer (default: the node's for calls)")
    parser.add_argument("--import", dest="imports", action="append", default=[], help="Python: warm library")
    parser.add_argument("--timeout", type=float, help="seconds that it may run")
    parser.add_argument("--memory", type=options.amount, help="bytes, or with K, M, G")
    parser.set_defaults(handler=handler, error_code=PLATFORM_FAILED)
    return parser


async def call_file(args: argparse.Namespace) -> int:
    """The program's exit code; of a function 0 when it returned."""
    given = _json_array(args.args)
    stdin = sys.stdin.buffer.read() if args.stdin else b""
    async with options.client_of(args) as client:
        result = await client.call(
            _source(args.file), *given, entry=args.entry, argv=args.argv, stdin=stdin, **_common(args)
        )
    if args.json:
        emit(result.told.model_dump(mode="json"))
    else:
        _tell(result)
    if args.entry is not None:
        return 0 if result.returned else FAILED
    return FAILED if result.code is None else result.code


async def judge_file(args: argparse.Namespace) -> int:
    """0 when every case is accepted."""
    cases = _cases(args.cases)
    async with options.client_of(args) as client:
        judged = await client.judge(
            _source(args.file), list(cases.values()), checker=args.checker, **_common(args)
        )
    if args.json:
        emit({"verdict": judged.verdict, "cases": [one.model_dump(mode="json") for one in judged.cases]})
    else:
        _tell_verdicts(judged, list(cases))
    return 0 if judged.verdict == "AC" else FAILED


def _common(args: argparse.Namespace) -> dict[str, Any]:
    language = args.language or LANGUAGES.get(args.file.suffix)
    if language is None:
        raise SpecError(f"{args.file} has no suffix that tells its language: --language", field="language")
    limits = {"wall": args.timeout, "memory": args.memory}
    return {
        "language": language,
        "image": args.image,
        "imports": args.imports,
        "limits": {name: value for name, value in limits.items() if value is not None},
    }


def _source(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError.during(f"{file} cannot be read", error) from error


def _json_array(text: str) -> list[Any]:
    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SpecError(f"--args is not JSON: {error}", field="args") from None
    if not isinstance(given, list):
        raise SpecError("--args is a JSON array", field="args")
    return given


def _cases(directory: Path) -> dict[str, tuple[bytes, bytes | None]]:
    """By name. Raises SpecError."""
    found = {}
    for file in sorted(directory.glob("*.in")):
        expected = file.with_suffix(".out")
        found[file.stem] = (file.read_bytes(), expected.read_bytes() if expected.exists() else None)
    if not found:
        raise SpecError(f"no *.in in {directory}", field="cases")
    return found


def _tell(result: FnResult) -> None:
    sys.stdout.write(result.text)
    sys.stderr.write(result.text_err)
    if result.returned:
        say(orjson.dumps(result.value).decode())
    elif result.raised is not None:
        sys.stderr.write(result.raised.traceback)
    elif result.compiled is not None and not result.compiled.ok:
        sys.stderr.write(result.compiled.log)
    elif result.detail:
        sys.stderr.write(f"{result.ended}: {result.detail}\n")


def _tell_verdicts(judged: Judged, names: list[str]) -> None:
    rows = [
        (name, one.verdict, f"{one.wall_ms:.0f}", f"{one.cpu_ms:.0f}", one.detail)
        for name, one in zip(names, judged.cases, strict=False)
    ]
    table(("case", "verdict", "ms", "cpu ms", "detail"), rows, title=f"{judged.verdict}: {judged.detail}")
