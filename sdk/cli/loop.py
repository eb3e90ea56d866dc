"""The event loop of the command line: uvloop's, where it is installed (extra `node`)."""

from __future__ import annotations

from typing import Any


def loop_factory() -> Any:
    """For asyncio.Runner; None is asyncio's own loop."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return uvloop.new_event_loop
