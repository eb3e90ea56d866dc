"""Whether a program's output is the expected one. Pure; `program` checkers run in boxes (`judge`)."""

from __future__ import annotations

import math
from typing import Final

from dsec.bus.caller import Checker

SHOWN: Final = 60
"""Bytes of a difference that are told."""


def difference(checker: Checker, output: bytes, expected: bytes) -> str:
    """Empty when they agree, else where they do not, for people."""
    if checker.kind == "exact":
        return _exact(output, expected)
    return _tokens(output, expected, checker.tolerance if checker.kind == "floats" else None)


def _exact(output: bytes, expected: bytes) -> str:
    """White space at the ends of lines, and empty lines at the end, do not count: no editor shows them."""
    got, wanted = _lines(output), _lines(expected)
    for number, (one, other) in enumerate(zip(got, wanted, strict=False), 1):
        if one != other:
            return f"line {number}: {_shown(one)}, expected {_shown(other)}"
    if len(got) != len(wanted):
        return f"{len(got)} lines, expected {len(wanted)}"
    return ""


def _lines(text: bytes) -> list[bytes]:
    lines = [line.rstrip() for line in text.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _tokens(output: bytes, expected: bytes, tolerance: float | None) -> str:
    got, wanted = output.split(), expected.split()
    for number, (one, other) in enumerate(zip(got, wanted, strict=False), 1):
        if one != other and not (tolerance is not None and _close(one, other, tolerance)):
            return f"word {number}: {_shown(one)}, expected {_shown(other)}"
    if len(got) != len(wanted):
        return f"{len(got)} words, expected {len(wanted)}"
    return ""


def _close(one: bytes, other: bytes, tolerance: float) -> bool:
    """Absolute or relative to what is expected; NaN agrees with nothing."""
    try:
        got, wanted = float(one), float(other)
    except ValueError:
        return False
    if not (math.isfinite(got) and math.isfinite(wanted)):
        return got == wanted
    return abs(got - wanted) <= tolerance * max(1.0, abs(wanted))


def _shown(text: bytes) -> str:
    return repr(text[:SHOWN].decode(errors="replace")) + ("…" if len(text) > SHOWN else "")
