"""The header `traceparent`, by which one call is followed through all processes.

Source: W3C Recommendation "Trace Context - Level 1", section 3.2. opendsec takes part without spans of its
own: a value is passed on as it came, so that what caused the call stays the parent of all that follows.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Final

TRACEPARENT: Final = "traceparent"
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]{0,200})?")


def fresh() -> str:
    """A new trace, sampled."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def is_valid(traceparent: str) -> bool:
    """Version 00 exactly, a later one with what it may have added; ids of zeros are none."""
    match = _FORM.fullmatch(traceparent)
    if match is None:
        return False
    version, trace, parent, _, more = match.groups()
    return (
        version != "ff" and bool(trace.strip("0") and parent.strip("0")) and (version > "00" or more is None)
    )


def accepted(headers: Mapping[str, str] | None) -> str:
    """The trace that a caller's headers name, a new one for a malformed value; empty without the header."""
    told = headers.get(TRACEPARENT) if headers else None
    if told is None:
        return ""
    return told if is_valid(told) else fresh()


def trace_id(traceparent: str) -> str:
    """The 32 hexadecimal digits that all processes share; empty for an empty one."""
    return traceparent[3:35]
