"""The event loop of the command line: uvloop's, where it is installed (extra `node`)."""

from __future__ import annotations

import gc
from typing import Any


def loop_factory() -> Any:
    """For asyncio.Runner; None is asyncio's own loop."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return uvloop.new_event_loop


def collect_rarely() -> None:
    """For long-running services: hundreds of thousands of live objects are not worth a look at every turn.

    What is there now stays for good. New objects are looked at in small steps, of a millisecond or ten, since
    nothing is served meanwhile; the old ones when there are two million more of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 10, 100)
